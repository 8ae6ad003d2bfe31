"""Lists the operators that autocast casts for on mps, and how it casts.

`python -m tools.apple_binary` read it from the builds of torch for Apple silicon, 2.6.0 to 2.15.0; a test of the
acceptance tier compares the two again. The names of the policies are those of torch, ATen/autocast_mode.h.
"""

from __future__ import annotations

from ..devices.facts import parse_version

_LOWER_PRECISION = """
    _convolution _convolution.deprecated _mps_convolution addbmm addmm addmv addr baddbmm bmm chain_matmul
    conv1d conv2d conv_tbc conv_transpose1d conv_transpose2d.input convolution einsum linalg_multi_dot linear
    lstm_cell matmul mm mv prelu scaled_dot_product_attention
"""
_FLOAT32 = """
    acos asin batch_norm binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity
    cumprod cumsum dist erfinv exp expm1 frobenius_norm.dim group_norm hinge_embedding_loss huber_loss kl_div
    l1_loss layer_norm linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm log log10 log1p log2
    log_softmax.int logsumexp margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    native_layer_norm nll_loss nll_loss2d nuclear_norm nuclear_norm.dim pdist poisson_nll_loss pow.Scalar
    pow.Tensor_Scalar pow.Tensor_Tensor prod prod.dim_int reciprocal renorm rsqrt sinh smooth_l1_loss
    soft_margin_loss softmax.int softplus sum sum.dim_IntList tan triplet_margin_loss
"""
_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot
"""

# From this release on.
_ADDED = {"conv3d": ((2, 9), "lower_precision_fp"), "conv_transpose3d.input": ((2, 9), "fp32")}
# Up to the release before this one: torch 2.13 has no operators for named dimensions any more.
_DIMENSION_NAMES_UNTIL = (2, 13)
_OF_DIMENSION_NAMES = """
    cumprod.dimname cumsum.dimname log_softmax.Dimname prod.dim_Dimname softmax.Dimname sum.dim_DimnameList
"""


def autocast_list(torch_version: str) -> dict[str, str]:
    """Returns what autocast does on mps in this release of torch, by operator.

    "lower_precision_fp": casts the arguments to autocast's format; "fp32": to float32; "promote": to the widest format
    among them. Autocast leaves the arguments of any other operator as they are.
    """
    version = parse_version(torch_version)
    policies = {"lower_precision_fp": _LOWER_PRECISION, "fp32": _FLOAT32, "promote": _WIDEST}
    found = {name: policy for policy, names in policies.items() for name in names.split()}
    found |= {name: policy for name, (since, policy) in _ADDED.items() if version >= since}
    if version < _DIMENSION_NAMES_UNTIL:
        found |= dict.fromkeys(_OF_DIMENSION_NAMES.split(), "fp32")
    return {f"aten::{name}": policy for name, policy in found.items()}
