"""The check, which traces on the CPU, and the simulated device agree on every operator that torch has samples for.

Two ways to one answer: the check reads the operator table and follows torch's composites by hand; on the simulated
device torch's dispatcher does both.
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch.utils._pytree import tree_map_only

from mps_trainer.check import Support, trace
from tests.conftest import on_device

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 3
PARTS = 4  # of the list of operators

# Operators that the two cannot agree on, each with the reason.
LEFT_OUT = {
    "to_sparse": "sparse tensors are not simulated",
    "tensor_split": "wants its indices on the CPU, and the test moves every tensor",
    "jiterator_": "CUDA alone has it",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "the check takes it for the attention of mps",
    "as_strided.partial_views": "its samples are views of a larger storage, which .to() does not keep",
}


def name_of(op) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(operators):
    for op in operators:
        if torch.float32 in op.dtypes and not name_of(op).startswith(tuple(LEFT_OUT)):
            # Not op.sample_inputs(), which reads the source of every frame of the stack for each operator.
            inputs = op.sample_inputs_func(op, "cpu", torch.float32, requires_grad=False)
            for number, sample in enumerate(itertools.islice(inputs, SAMPLES)):
                yield f"{name_of(op)}[{number}]", op, sample


def traced(op, sample) -> bool | str:
    """Returns True if the check says that this call fails on mps; a text if it fails on the CPU."""
    try:
        report = trace(lambda: op(sample.input, *sample.args, **sample.kwargs), fallback=False)
    except Exception as error:
        return f"CPU: {type(error).__name__}"
    return bool(report.with_support(Support.FAILS)) or not report.ready


def simulated(op, sample) -> bool | str:
    """Returns True if this call fails on the simulated device for lack of a kernel or a number format."""
    try:
        moved = [
            tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("mps"), value)
            for value in (sample.input, sample.args, sample.kwargs)
        ]
        op(moved[0], *moved[1], **moved[2])
    except (NotImplementedError, TypeError):
        return True
    except Exception as error:
        return f"mps: {type(error).__name__}: {error}"
    return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_check_and_simulated_device_agree_on_every_operator_with_samples(part):
    cases = list(samples(op_db[part::PARTS]))
    expected = {name: traced(op, sample) for name, op, sample in cases}
    with on_device("mps", fallback=False):
        found = {name: simulated(op, sample) for name, op, sample in cases}
    differing = {name: (expected[name], found[name]) for name in expected if expected[name] != found[name]}
    assert differing == {}
    operators = {name.partition("[")[0] for name in expected}
    failing = {name.partition("[")[0] for name, fails in expected.items() if fails is True}
    assert len(operators) > 600 / PARTS
    assert len(failing) > 20 / PARTS
