"""The operator table: what it reads from torch."""

import pytest
import torch

from mps_trainer.check import OperatorTable, Support, operator_table, trace
from mps_trainer.devices.facts import parse_version
from mps_trainer.tools.check import table as table_module
from mps_trainer.tools.check.table import always_falls_back


@pytest.fixture(scope="module")
def table():
    return operator_table()


@pytest.mark.parametrize(
    ("name", "support"),
    [
        ("aten::bmm", Support.NATIVE),
        ("aten::mul.Tensor", Support.NATIVE),  # its structured delegate, mul.out, has the kernel
        ("aten::linear", Support.NATIVE),  # composite elsewhere
        ("aten::transpose.int", Support.COMPOSITE),
        ("aten::_foreach_add.Scalar", Support.COMPOSITE),
        ("aten::linalg_ldl_factor_ex", Support.COMPOSITE),  # structured, and its delegate has no kernel for mps
        ("aten::linalg_ldl_factor_ex.out", Support.FAILS),
        ("aten::linalg_lu_solve.out", Support.NATIVE),  # registered from Python
        ("aten::multi_margin_loss", Support.FAILS),
        ("aten::embedding_renorm_", Support.FALLS_BACK),
        ("aten::_coalesce", Support.NATIVE),  # for sparse tensors alone
        ("aten::no_such_operator", Support.FAILS),
        ("mine::no_such_operator", Support.FAILS),
    ],
)
def test_an_operator_gets_what_torch_registers_for_mps(table, name, support):
    assert table.support(name) is support


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("2.7.1", {"embedding_renorm_", "linalg_svd", "linalg_svd.U", "col2im", "upsample_nearest3d.vec"}),
        ("2.13.0+cpu", {"embedding_renorm_", "linalg_svd", "linalg_svd.U"}),
        ("2.15.0", {"embedding_renorm_"}),
    ],
)
def test_what_always_falls_back_depends_on_the_release(version, names):
    assert always_falls_back(version) == {f"aten::{name}" for name in names}
    table = OperatorTable(version, frozenset(), frozenset({"aten::linalg_svd"}), frozenset())
    falls_back = "linalg_svd" in names
    assert table.support("aten::linalg_svd") is (Support.FALLS_BACK if falls_back else Support.COMPOSITE)


def test_an_operator_of_another_library_has_the_kernels_that_this_process_registered(table):
    library = torch.library.Library("mps_trainer_test", "FRAGMENT")
    for name, key in {"on_mps": "MPS", "anywhere": "CompositeImplicitAutograd", "on_cpu": "CPU"}.items():
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x.clone(), key)
    assert table.support("mps_trainer_test::on_mps") is Support.NATIVE
    assert table.support("mps_trainer_test::anywhere") is Support.COMPOSITE
    assert table.support("mps_trainer_test::on_cpu") is Support.FAILS


def test_composite_operators_are_those_that_the_dispatcher_can_compose(table):
    """Torch has a kernel for any device where the table says composite, and none where it says CPU."""
    composes = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in table_module.COMPOSITE_KEYS)
    }
    known = set(torch._C._dispatch_get_all_op_names())
    assert (table.composite & known) - composes == set()
    assert table.cpu & composes == set()


@pytest.mark.skipif(parse_version(torch.__version__) < (2, 15), reason="torch 2.15 added these kernels")
@pytest.mark.parametrize(
    ("name", "support"),
    [
        ("aten::_grouped_mm", Support.NATIVE),
        ("aten::_int_mm", Support.NATIVE),
        ("aten::_scaled_mm_v2.out", Support.NATIVE),
        ("aten::bmm.dtype", Support.FAILS),  # 16-bit factors and a float32 result: for CUDA and XPU only
    ],
)
def test_kernels_of_torch_2_15(table, name, support):
    assert table.support(name) is support


@pytest.mark.skipif(not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="torch 2.15 added it")
def test_a_loss_in_chunks_of_torch_runs_on_mps():
    device = torch.device("cpu")
    states, weight = (torch.randn(rows, 4, device=device, requires_grad=True) for rows in (64, 9))

    def step() -> None:
        options = torch.nn.LinearCrossEntropyOptions()
        targets = torch.zeros(64, dtype=torch.long, device=device)
        torch.nn.functional.linear_cross_entropy(states, weight, targets, options=options).backward()

    report = trace(step, fallback=False)
    assert report.ready
    assert any("linear_cross_entropy" in use.name for use in report.operators)
