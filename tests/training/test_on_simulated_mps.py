"""What only a device can tell: how often training waits for it, and which mistakes it does not forgive."""

import pytest
import torch
from torch import nn

from mps_trainer import Trainer
from mps_trainer.simulator import SimulationCallback
from tests.conftest import accuracy, examples


@pytest.fixture
def figures(mps, make_trainer):
    """Trains a few steps and gives the figures of each but the first, which makes the optimizer's state."""

    def train(kind=Trainer, steps=4, **settings):
        callback = SimulationCallback(mps)
        make_trainer(
            {"kind": kind, "callbacks": [callback], "train_dataset": examples(8 * steps)},
            **{"max_steps": steps, "per_device_train_batch_size": 8, "logging_steps": 100, **settings},
        ).train()
        return callback.steps[1:]

    return train


@pytest.mark.parametrize("settings", [{}, {"bf16": True}, {"gradient_accumulation_steps": 2, "max_steps": 2}])
def test_a_training_step_never_waits_for_the_device(figures, settings):
    steps = figures(**settings)
    assert steps
    assert [step.blocking_reads for step in steps] == [0] * len(steps)
    assert [step.device_to_host for step in steps] == [0] * len(steps)


def test_batches_of_one_shape_compile_nothing_new_after_the_first_steps(figures):
    assert [step.new_shapes for step in figures(steps=6)][1:] == [0] * 4


@pytest.mark.parametrize("settings", [{}, {"include_for_metrics": ["inputs", "loss"]}], ids=str)
def test_an_evaluation_waits_as_often_for_many_batches_as_for_few(mps, make_trainer, settings):
    def reads(batches):
        trainer = make_trainer({"compute_metrics": accuracy, "eval_dataset": examples(8 * batches)}, **settings)
        trainer.model.main_input_name = "x"
        mps.reset()
        trainer.evaluate()
        report = mps.report()
        return report.blocking_reads, report.device_to_host

    assert reads(12) == reads(3)
    assert reads(3)[0] == reads(3)[1] == 3 + ("include_for_metrics" in settings)  # losses, predictions, labels, inputs


def test_outputs_of_an_evaluation_are_joined_in_one_operation(mps, make_trainer):
    def joins(batches):
        trainer = make_trainer({"compute_metrics": accuracy, "eval_dataset": examples(8 * batches)})
        mps.reset()
        trainer.evaluate()
        return {operator.name: operator.calls for operator in mps.report().operators}["aten::cat"]

    assert joins(12) == joins(3)


def test_memory_does_not_grow_from_step_to_step(figures):
    live = [step.bytes_live for step in figures(steps=6)]
    assert live[1:] == live[:1] * 4


def test_a_batch_left_on_the_cpu_is_caught(figures):
    class Forgetful(Trainer):
        def _prepare_inputs(self, inputs):
            return inputs

    with pytest.raises(RuntimeError, match=r"same device.*mps:0 and cpu.*aten::linear"):
        figures(Forgetful)


def test_a_float64_loss_is_caught(figures):
    class Precise(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs).double()

    with pytest.raises(TypeError, match="doesn't support float64"):
        figures(Precise)


def test_reading_the_loss_in_a_step_is_caught(figures):
    class Curious(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = super().training_step(model, inputs, num_items_in_batch)
            assert loss.item() > 0
            return loss

    assert [step.blocking_reads for step in figures(Curious)] == [1] * 3


def test_the_line_that_reads_is_in_the_report(mps, make_trainer):
    class Curious(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = super().training_step(model, inputs, num_items_in_batch)
            assert loss.item() > 0  # this line
            return loss

    make_trainer({"kind": Curious}, max_steps=3, logging_steps=100).train()
    place = next(place for place in mps.report().places if place.file == __file__)
    assert (place.count, place.operator) == (3, "aten::_local_scalar_dense")
    assert place.source.endswith("# this line")


def test_an_operator_without_a_kernel_is_caught(mps, make_trainer):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x, labels=None):
            return {"loss": torch.special.airy_ai(x).matmul(self.weight).sum() * self.weight.sum()}

    with pytest.raises(NotImplementedError, match=r"airy_ai.*PYTORCH_ENABLE_MPS_FALLBACK=1"):
        make_trainer({"model": Odd()}, max_steps=1).train()
