"""Operators give the CPU's numbers, and run, fall back or fail as the operator table of the installed torch says.

The check and the simulated device are two ways to one answer: the check reads the operator table and follows torch's
composites by hand; on the simulated device torch's dispatcher does both. They have to agree on every operator that
torch has samples for.
"""

import itertools
import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map_only

from mps_trainer.check import Support, trace
from mps_trainer.tools.check.table import always_falls_back, operator_table
from tests.conftest import on_device

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 3
PARTS = 4  # each test has a part of the operators

# Operators that the two cannot agree on, each with the reason.
LEFT_OUT = {
    "to_sparse": "sparse tensors are not simulated",
    "sparse.": "the same",
    "tensor_split": "wants its indices on the CPU, and the test moves every tensor",
    "jiterator_": "CUDA alone has it",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "the check takes it for the attention of mps",
    "as_strided.partial_views": "its samples are views of a larger storage, which .to() does not keep",
}
NOT_COMPARED = ("empty", "new_empty")  # they leave memory as it is
# The CPU has one kernel for renorm and hardware several; how inner adds depends on where the vectors lie in memory.
ROUNDED = ("renorm", "inner")

# Composite operators that choose by device in their midst: what a build for a Mac chooses has to be put in its place.
CHOSEN_BY_DEVICE = {
    "aten::conj_physical_",
    "aten::convolution_backward_overrideable",
    "aten::convolution_overrideable",
    "aten::copy_",
    "aten::kaiser_window",
    "aten::kaiser_window.beta",
    "aten::kaiser_window.periodic",
    "aten::ldexp.Tensor",
    "aten::ldexp.out",
    "aten::ldexp_",
    "aten::lstm.input",
    "aten::scaled_dot_product_attention",
}


def name_of(op) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(operators):
    for op in operators:
        if torch.float32 in op.dtypes and not name_of(op).startswith(tuple(LEFT_OUT)):
            # Not op.sample_inputs(), which reads the source of every frame of the stack for each operator.
            inputs = op.sample_inputs_func(op, "cpu", torch.float32, requires_grad=op.supports_autograd)
            for number, sample in enumerate(itertools.islice(inputs, SAMPLES)):
                yield f"{name_of(op)}[{number}]", op, sample


def traced(op, sample, fallback: bool) -> bool | str:
    """Returns True if the check says that this call fails on mps; a text if it fails on the CPU."""
    try:
        report = trace(lambda: op(sample.input, *sample.args, **sample.kwargs), fallback=fallback)
    except Exception as error:
        return f"CPU: {type(error).__name__}"
    return bool(report.with_support(Support.FAILS)) or not report.ready


def results_and_gradients(op, sample, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the results, and the gradients of the sum of their squares."""
    torch.manual_seed(0)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().to(device).requires_grad_(tensor.requires_grad)

    given = tree_map_only(torch.Tensor, moved, (sample.input, sample.args, sample.kwargs))
    with sdpa_kernel(SDPBackend.MATH):  # the CPU has a fused attention kernel with other rounding
        results = [each for each in tree_leaves(op(given[0], *given[1], **given[2])) if torch.is_tensor(each)]
        squares = [(each * each.conj()).real.sum() for each in results if each.requires_grad]
        if squares:
            sum(squares).backward()
    gradients = [each.grad for each in tree_leaves(given) if torch.is_tensor(each) and each.grad is not None]
    return [each.detach() for each in results], gradients


def difference(name: str, op, sample) -> str:
    """Returns how the results or gradients on the simulated device differ from the CPU's, or ""."""
    expected = results_and_gradients(op, sample, "cpu")
    found = results_and_gradients(op, sample, "mps")
    tolerance = 1e-5 if name.startswith(ROUNDED) else 0
    try:
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_device=False)
    except AssertionError as error:
        return str(error)
    return ""


def simulated(name: str, op, sample) -> bool | str:
    """Returns True if this call fails on the simulated device for lack of a kernel or a number format."""
    try:
        wrong = difference(name, op, sample)
    except (NotImplementedError, TypeError):
        return True
    except Exception as error:
        return f"mps: {type(error).__name__}: {error}"
    return wrong if wrong and not name.startswith(NOT_COMPARED) else False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_check_and_simulated_device_agree_and_compute_as_the_cpu(part):
    table, cases = operator_table(), list(samples(op_db[part::PARTS]))
    with on_device("mps", fallback=False, same_draws_as_cpu=True) as device:
        found = {name: simulated(name, op, sample) for name, op, sample in cases}
        ran = device.report().operators
    expected = {name: traced(op, sample, fallback=False) for name, op, sample in cases}
    assert {name: (expected[name], found[name]) for name in expected if expected[name] != found[name]} == {}
    assert {each.name for each in ran if each.fell_back} <= always_falls_back(torch.__version__)
    assert {each.name for each in ran if not each.fell_back} <= table.native | CHOSEN_BY_DEVICE
    failing = [case for case in cases if expected[case[0]] is True]
    assert len({name.partition("[")[0] for name in expected}) > 600 / PARTS
    assert len({name.partition("[")[0] for name, _, _ in failing}) > 20 / PARTS
    with on_device("mps", fallback=True, same_draws_as_cpu=True):
        found = {name: simulated(name, op, sample) for name, op, sample in failing}
    assert found == {name: traced(op, sample, fallback=True) for name, op, sample in failing}


def has_kernel(name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "MPS")


def test_every_operator_of_the_table_has_the_kernel_that_it_names_and_no_other_has_one(mps):
    table = operator_table()
    assert len(table.native) > 500
    assert [name for name in sorted(table.native) if not has_kernel(name)] == []
    registered_by_torch_itself = {"aten::linalg_lu_solve.out"}
    others = {name for name in table.cpu | table.composite if has_kernel(name)}
    falls_back = always_falls_back(torch.__version__) - table.native
    assert others - CHOSEN_BY_DEVICE - registered_by_torch_itself == falls_back
