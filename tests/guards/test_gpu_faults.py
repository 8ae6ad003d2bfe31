"""A command of the GPU that failed ends a run with one explanation, and the good checkpoint."""

from __future__ import annotations

import pytest
from transformers import TrainerCallback

from mps_trainer.errors import explanation_of
from mps_trainer.guards.gpu_faults import is_gpu_fault, ran_out_of_memory

SAID = "MPS command buffer execution failed: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackError)"


class Fault(TrainerCallback):
    def __init__(self, message):
        self.message = message

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise RuntimeError(self.message)


def fails(make_trainer, message):
    trainer = make_trainer({"callbacks": [Fault(message)]}, max_steps=6, save_steps=2, save_strategy="steps")
    with pytest.raises(RuntimeError) as raised:
        trainer.train()
    return explanation_of(raised.value)


@pytest.mark.every_device
def test_the_weights_are_not_trusted_and_the_last_checkpoint_is_named(make_trainer):
    said = fails(make_trainer, SAID)
    assert "The weights in memory are not trusted, and they were not saved. Use a smaller" in said
    assert said.endswith("checkpoint-2.")


def test_another_error_is_left_alone(make_trainer):
    assert fails(make_trainer, "MPS backend is busy").startswith("The callback Fault failed at on_step_end")


def test_a_fault_for_memory_is_told_from_others():
    memory = RuntimeError("MPS command buffer execution failed: Insufficient Memory (00000008)")
    assert (is_gpu_fault(memory), ran_out_of_memory(memory)) == (True, True)
    assert (is_gpu_fault(RuntimeError(SAID)), ran_out_of_memory(RuntimeError(SAID))) == (True, False)
    assert not is_gpu_fault(ValueError(SAID))
