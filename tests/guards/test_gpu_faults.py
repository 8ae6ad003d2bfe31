"""A command of the GPU that failed ends a run with one explanation, and the good checkpoint."""

import pytest

from mps_trainer.errors import explanation_of

from .test_supervised import Fails

SAID = "MPS command buffer execution failed: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackError)"


def fails(make_trainer, message):
    trainer = make_trainer({"callbacks": [Fails(3, message)]}, max_steps=6, save_steps=2, save_strategy="steps")
    with pytest.raises(RuntimeError) as raised:
        trainer.train()
    return explanation_of(raised.value)


@pytest.mark.every_device
def test_the_weights_are_not_trusted_and_the_last_checkpoint_is_named(make_trainer):
    said = fails(make_trainer, SAID)
    assert "The weights in memory are not trusted, and they were not saved. Use a smaller" in said
    assert said.endswith("checkpoint-2.")


def test_another_error_is_left_alone(make_trainer):
    assert fails(make_trainer, "MPS backend is busy").startswith("The callback Fails failed at on_step_end")


# Words of Metal, and whether the run starts again on half the examples at a time.
