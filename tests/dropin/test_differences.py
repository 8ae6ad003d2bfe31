"""Both libraries have the numbers and behaviour that docs/differences.md states."""

import dataclasses

import pytest
import torch
import transformers
from torch import nn
from transformers import ViTForImageClassification

import mps_trainer
from tests.conftest import Stream
from tests.tiny import tiny

pytestmark = pytest.mark.skipif(
    not hasattr(transformers.Trainer, "_finalize_training"), reason="The page is about transformers 5.23."
)


class Squares(nn.Module):
    """A model without num_items_in_batch. The loss is the mean of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x, labels=None):
        return {"loss": (self.weight + x).square().mean()}


def numbers(count: int) -> list[dict]:
    return [{"x": torch.tensor([float(n)]), "labels": 0} for n in range(count)]


def test_unequal_batches_of_an_update_weigh_by_examples_here(library):
    settings = {"gradient_accumulation_steps": 2, "train_sampling_strategy": "sequential", "max_steps": 1}
    trainer = library.trained(Squares(), train_dataset=numbers(6), per_device_train_batch_size=4, **settings)
    of_batches = [(0 + 1 + 4 + 9) / 4, (16 + 25) / 2]
    expected = {mps_trainer: (0 + 1 + 4 + 9 + 16 + 25) / 6, transformers: sum(of_batches) / 2}[library.module]
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected)


def test_the_rest_of_a_stream_is_a_step_here(library):
    settings = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 1, "max_steps": 2}
    trainer = library.trained(
        Squares(), train_dataset=Stream(numbers(3)), learning_rate=0.0, logging_steps=1, **settings
    )
    expected = {mps_trainer: 4, transformers: 4 + (0 + 1) / 2}[library.module]
    assert trainer.state.log_history[1]["loss"] == pytest.approx(expected)


def test_batch_size_that_changes_between_two_runs_is_used_here(library):
    trainer = library.trained(Squares(), train_dataset=numbers(6), per_device_train_batch_size=3, num_train_epochs=1)
    trainer.args.per_device_train_batch_size = 2
    assert trainer.train().global_step == {mps_trainer: 3, transformers: 2}[library.module]


def test_create_optimizer_and_scheduler_is_called_here_only(library):
    class Own(library.module.Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps):
            called.append(num_training_steps)
            super().create_optimizer_and_scheduler(num_training_steps)

    called: list[int] = []
    library.trained(Squares(), train_dataset=numbers(6), kind=Own, max_steps=1)
    assert called == {mps_trainer: [1], transformers: []}[library.module]


@pytest.mark.parametrize("count", [8, 10])
def test_eval_loss_of_seq2seq_trainer_weighs_by_examples_here(library, count):
    model = tiny("T5ForConditionalGeneration", initializer_factor=5.0).eval()
    rows = [{name: torch.randint(3, 64, (5,)) for name in ("input_ids", "labels")} for _ in range(count)]
    seq2seq = dataclasses.replace(library, prefix="Seq2Seq")
    loss = seq2seq.trainer(model, eval_dataset=rows, per_device_eval_batch_size=4).evaluate()["eval_loss"]
    with torch.no_grad():
        each = [model(**{name: ids[None] for name, ids in row.items()}).loss.item() for row in rows]
    batches = [each[begin : begin + 4] for begin in range(0, count, 4)]
    of_batches = sum(sum(batch) / len(batch) for batch in batches) / len(batches)
    assert loss == pytest.approx(sum(each) / count if library.is_ours else of_batches, rel=1e-5)
    assert (of_batches == pytest.approx(sum(each) / count, rel=1e-5)) == (count == 8)


def test_best_weights_of_vit_are_all_restored_here(library):
    model = tiny("ViTForImageClassification", image_size=8, patch_size=4, num_labels=2)
    rows = [{"pixel_values": torch.randn(3, 8, 8), "labels": n % 2} for n in range(16)]
    scores = iter([3, 2])
    given = {"train_dataset": rows, "eval_dataset": rows[:4]}
    given["compute_metrics"] = lambda prediction: {"score": next(scores)}
    settings = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "score"}
    trainer = library.trained(model, learning_rate=1e-2, **given, **settings)
    assert trainer.state.best_global_step == 1
    best = ViTForImageClassification.from_pretrained(library.folder / "checkpoint-1").state_dict()
    restored = [name for name, weights in model.state_dict().items() if torch.equal(weights, best[name])]
    assert (len(restored), len(best)) == {mps_trainer: (40, 40), transformers: (8, 40)}[library.module]
