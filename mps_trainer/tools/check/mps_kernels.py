"""Says which kernels of torch for mps compile a graph for each shape, and which wait for values of their arguments.

No file of torch for Linux says so. `python -m tools.apple_binary` finds both in torch's builds for Apple silicon: the
kernels that call MPSGraphCache::LookUp, and those that call Tensor::item or nonzero, which its sources then explain.
The tables hold for 2.13.0, 2.14.1 and 2.15.0; an older torch counts as 2.13.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ...devices.facts import parse_version

# By the release from which on the operators have kernels without a graph; None: they have graphs in 2.15.
_GRAPHS_BEFORE: dict[tuple[int, ...] | None, str] = {
    (2, 14): """
        _upsample_nearest_exact1d _upsample_nearest_exact2d arange conj_physical glu glu_backward index_add
        index_select linspace log_sigmoid_backward log_sigmoid_forward logical_not max median min mish mish_backward
        nan_to_num nanmedian range sigmoid_backward upsample_nearest1d upsample_nearest2d
    """,
    (2, 15): """
        _log_softmax _softmax _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward addcdiv addcmul
        ceil constant_pad_nd flip floor isneginf isposinf logical_and logical_or logical_xor logit_backward
        nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward pow.Tensor_Tensor
        pow.Tensor_Tensor_out pow_.Tensor prod reflection_pad1d reflection_pad1d_backward reflection_pad2d
        reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad2d
        replication_pad2d_backward replication_pad3d replication_pad3d_backward softplus softplus_backward std
        tanh_backward trunc upsample_bilinear2d_backward upsample_linear1d_backward upsample_nearest1d_backward
        upsample_nearest2d_backward var where
    """,
    None: """
        _batch_norm_with_update _fft_c2c _fft_c2r _fft_r2c _log_softmax_backward_data _lstm_mps _mps_convolution
        _mps_convolution_transpose _native_batch_norm_legit _prelu_kernel _prelu_kernel_backward
        _scaled_dot_product_attention_math_for_mps _softmax_backward_data _unique _unique2 _weight_norm_interface
        _weight_norm_interface_backward acosh addbmm addmm addmv addr asinh atanh avg_pool2d avg_pool2d_backward
        baddbmm batch_norm_backward binary_cross_entropy binary_cross_entropy_backward bincount bmm dot frac
        hardtanh_backward huber_loss huber_loss_backward isin.Scalar_Tensor
        isin.Scalar_Tensor_out isin.Tensor_Tensor isin.Tensor_Tensor_out linear linear_backward logit lstm_mps_backward
        max_pool2d max_pool2d_backward max_pool2d_with_indices max_pool2d_with_indices_backward mm
        mps_convolution_backward mps_convolution_transpose_backward mse_loss mse_loss_backward native_batch_norm
        native_batch_norm_backward native_layer_norm_backward pixel_shuffle pixel_unshuffle repeat sgn sign signbit
        smooth_l1_loss smooth_l1_loss_backward std_mean threshold threshold_backward unique_consecutive
        unique_dim_consecutive var_mean vdot
    """,
}


class Read(NamedTuple):
    """An argument whose values a kernel brings to the host."""

    argument: str
    numbers_only: bool = False  # True if the kernel reads it only if it has no dimensions
    before: tuple[int, ...] = ()  # the release from which on the kernel does without; () if 2.15 reads it


# Beside the operators that torch tags as data_dependent_output or dynamic_output_shape.
_READS = {
    Read("value"): "masked_fill_.Tensor index_fill_.int_Tensor",
    Read("mask"): "masked_scatter_",
    Read("p", numbers_only=True): "bernoulli_.Tensor",
    Read("std"): "normal.Tensor_Tensor normal.Tensor_Tensor_out normal.float_Tensor normal.float_Tensor_out",
    Read("lr"): "_fused_adam_.tensor_lr _fused_adamw_.tensor_lr _fused_sgd_.tensor_lr",
    Read("A", before=(2, 14)): """
        _linalg_solve_ex _linalg_solve_ex.result linalg_inv_ex linalg_inv_ex.inverse linalg_lu_factor_ex
        linalg_lu_factor_ex.out linalg_qr linalg_qr.out
    """,
}


@cache
def compiles_graphs(operator: str, torch_version: str) -> bool:
    """Returns True if the mps kernel of `operator` ("aten::addmm.out") compiles a graph for each shape in that torch.

    The in-place and out= variants of an operator share its kernel.
    """
    name = operator.removeprefix("aten::")
    base = name.partition(".")[0]
    names = {name, base, base.removesuffix("_")}
    version = parse_version(torch_version)
    return any(
        not names.isdisjoint(operators.split())
        for before, operators in _GRAPHS_BEFORE.items()
        if before is None or version < before
    )


@cache
def reads(torch_version: str) -> dict[str, Read]:
    """Returns the argument that each operator's mps kernel reads, by the operator's name, in that torch."""
    version = parse_version(torch_version)
    here = {read: names.split() for read, names in _READS.items() if not read.before or version < read.before}
    return {f"aten::{name}": read for read, names in here.items() for name in names}
