"""torch.compile for the simulated device: kernels are counted, and what cannot be compiled is named."""

import dataclasses
import json

import pytest
import torch
from torch import nn

from mps_trainer.tools.simulator.compiled import CompiledStep, count_kernels, kernels_in, reason_of
from tools.compiled_kernels import STEPS

SOURCE = """
#include <c10/metal/utils.h>
kernel void generated_kernel_0(
    device float* out_ptr0,
    device half* in_out_ptr1,
    constant float* in_ptr0,
    constant long& ks0,
    device c10::metal::ErrorMessages* error_buf,
    uint2 thread_pos [[thread_position_in_grid]]
) {
    out_ptr0[thread_pos.x] = in_ptr0[thread_pos.x];
}
kernel void generated_kernel_1(constant long* in_ptr0, device long* out_ptr0, uint x [[thread_position_in_grid]]) {
}
"""
COUNTED = CompiledStep(
    eager=10,
    launches=3,
    kernels=2,
    left={"aten::mm": 1, "aten::bmm": 4},
    graphs=2,
    graph_breaks=("Call to print",),
    failures=("forward: NotImplementedError in frexp",),
)


def test_the_text_has_the_counts_and_says_what_was_not_done():
    text = str(COUNTED)
    assert "8 kernels, 10 without it" in text
    assert "3 launches of 2 kernels" in text
    assert "5 launches (aten::bmm 4, aten::mm 1)" in text
    assert "graph break: Call to print" in text
    assert "not compiled: forward: NotImplementedError in frexp" in text
    assert "not been compiled by Apple's compiler" in text
    assert json.loads(json.dumps(COUNTED.to_dict()))["total"] == 8
    broken_off = str(dataclasses.replace(COUNTED, ended=False))
    assert "the step failed; it has 10 kernels" in broken_off
    assert "not compiled: forward: NotImplementedError in frexp" in broken_off
    assert "launches" not in broken_off
    # kernels, and the arguments that they write
    assert kernels_in(SOURCE) == {"generated_kernel_0": (0, 1), "generated_kernel_1": (1,)}


def frexp() -> None:
    raise NotImplementedError


def test_a_reason_is_the_cause_and_without_a_message_the_function():
    with pytest.raises(NotImplementedError) as raised:
        frexp()
    error = RuntimeError("Inductor gave up")
    error.__cause__ = raised.value
    assert reason_of(error) == "NotImplementedError in frexp"
    assert reason_of(ValueError("no\n target: aten.mm\n")) == "ValueError: no (aten.mm)"
    assert reason_of(ValueError()) == "ValueError"


class Layer(nn.Module):
    def __init__(self, last) -> None:
        super().__init__()
        self.linear, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(nn.functional.gelu(self.linear(x)))).square().mean()


@pytest.mark.integration  # importing Inductor alone takes seconds
def test_a_step_that_fails_when_it_is_compiled_has_not_ended(mps):
    inputs, model = torch.randn(4, 8).to("mps"), Layer(torch.tanh).to("mps")

    def loss(called: nn.Module) -> torch.Tensor:
        if called is not model:
            raise ValueError("compiled")
        return called(inputs)

    counted = count_kernels(model, loss, mps)
    assert counted.failures == ("forward: ValueError: compiled",)
    assert not counted.ended


@pytest.mark.integration
def test_a_graph_break_is_counted(mps):
    inputs, original = torch.randn(4, 8).to("mps"), torch.mps.compile_shader

    def look(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    counted = count_kernels(Layer(look).to("mps"), lambda model: model(inputs), mps)
    assert counted.graphs == 2
    assert 0 < counted.kernels == counted.launches  # each once
    assert set(counted.left) == {"aten::addmm.out", "aten::mm.out"} or "aten::linear_backward" in counted.left
    assert torch.mps.compile_shader is original
    (reason,) = counted.graph_breaks
    assert "graph_break" in reason


@pytest.mark.acceptance
@pytest.mark.parametrize("name", STEPS)
def test_the_steps_of_the_page_compile_whole(mps, name):
    model, batch = STEPS[name]()
    inputs = {key: value.to("mps") for key, value in batch.items()}
    counted = count_kernels(model.to("mps").train(), lambda model: model(**inputs).loss, mps)
    assert counted.failures == ()
    assert counted.graph_breaks == ()
    assert counted.total < counted.eager
