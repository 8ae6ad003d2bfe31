"""Autocast in a trace casts for the operators of mps, not for those of the CPU."""

import pytest
import torch
from torch.nn import functional as F

from mps_trainer.check import Tracer, trace

from .conftest import names

HALF = torch.randn(2, 3, 4, dtype=torch.bfloat16)
SINGLE = torch.randn(2, 3, 4)
VOLUME = torch.randn(1, 2, 3, 3, 3)
KERNEL = torch.randn(2, 2, 2, 2, 2)


# In the trace, and on the CPU without it.
CASES = {
    "lower precision on both": (lambda: SINGLE @ SINGLE.mT, torch.bfloat16, torch.bfloat16),
    "lower precision on mps": (lambda: torch.mv(SINGLE[0], SINGLE[0, 0]), torch.bfloat16, torch.float32),
    "float32 on mps": (lambda: F.layer_norm(HALF, (4,)), torch.float32, torch.bfloat16),
    "float32 on both": (lambda: F.mse_loss(HALF, HALF), torch.float32, torch.float32),
    "softmax": (lambda: HALF.softmax(-1), torch.float32, torch.bfloat16),
    "widest on mps": (lambda: torch.addcmul(HALF, HALF, SINGLE), torch.float32, torch.float32),
    "widest of lower ones": (lambda: torch.addcmul(HALF, HALF, HALF), torch.bfloat16, torch.bfloat16),
    "float32 on mps, lower on the CPU": (lambda: F.conv_transpose3d(VOLUME, KERNEL), torch.float32, torch.bfloat16),
    "float32 on the CPU": (lambda: F.avg_pool3d(VOLUME.bfloat16(), 2), torch.bfloat16, torch.float32),
    "float64 stays": (lambda: SINGLE.double().exp(), torch.float64, torch.float64),
    "an integer stays": (lambda: torch.ones(3, dtype=torch.long).sum(), torch.int64, torch.int64),
}


@pytest.mark.parametrize("case", CASES)
def test_a_trace_casts_as_mps_does_and_the_cpu_is_itself_again_after_it(case):
    compute, on_mps, on_cpu = CASES[case]

    def autocast() -> torch.dtype:
        with torch.autocast("cpu", torch.bfloat16):
            return compute().dtype

    assert autocast() is on_cpu
    with Tracer(), Tracer():
        assert autocast() is on_mps
    assert autocast() is on_cpu


def test_the_casts_and_their_gradients_are_in_the_report():
    layer, norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
    image, grid = torch.randn(1, 1, 4, 4).bfloat16(), torch.zeros(1, 2, 2, 2).bfloat16()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = norm(layer(SINGLE)).sum()
            # the CPU has no kernel for it in half precision
            assert F.grid_sample(image, grid, align_corners=False).dtype is torch.bfloat16
        loss.backward()

    report = trace(step)
    assert {"aten::native_layer_norm", "aten::_to_copy"} <= names(report)
    (cast,) = [use for use in report.operators if use.name == "aten::_to_copy" and use.phase == "forward"]
    assert cast.calls == 4  # input, weight and bias of the linear layer to bfloat16, and its output to float32
    assert cast.where.file == __file__
    assert layer.weight.grad.dtype is torch.float32
