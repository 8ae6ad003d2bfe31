"""Metrics and predictions, number for number as in transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader
from transformers import EvalPrediction

import mps_trainer

from . import pairs
from .conftest import assert_same_logs, bert_classifier, gpt2, lasting, sentences, texts


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    logits = prediction.predictions
    return {"accuracy": (np.asarray(logits).argmax(-1) == np.asarray(prediction.label_ids)).mean()}


class Counted:
    """Metrics batch by batch: what the last call says is the result."""

    def __init__(self):
        self.right = self.seen = self.calls = 0

    def __call__(self, prediction, compute_result=False):
        self.calls += 1
        self.right += int((prediction.predictions.argmax(-1) == prediction.label_ids).sum())
        self.seen += len(prediction.label_ids)
        return {"accuracy": self.right / self.seen, "calls": self.calls} if compute_result else {}


SETTINGS = {
    "defaults": {},
    "accumulated": {"eval_accumulation_steps": 1},
    "loss only": {"prediction_loss_only": True},
    "batches apart": {"eval_do_concat_batches": False, "prediction_loss_only": False},
    "gathered objects": {"eval_use_gather_object": True},
    "bfloat16": {"bf16_full_eval": True},
    "float16": {"fp16_full_eval": True},
    "autocast": {"bf16": True},
    "big batches": {"per_device_eval_batch_size": 64},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_metrics_are_those_of_transformers(both, settings):
    def run(library):
        metric = None if settings.get("eval_do_concat_batches") is False else accuracy
        data = {"eval_dataset": sentences(19), "compute_metrics": metric}
        trainer = library.trainer(bert_classifier(), trainer=data, **settings)
        first = trainer.evaluate()
        return [list(first), list(trainer.evaluate()), lasting(first), trainer.state.log_history]

    theirs, ours = both(run)
    # in float16 transformers takes the mean of the losses in float16, too
    tolerance = 1e-3 if "fp16_full_eval" in settings else 1e-5
    assert ours[:2] == theirs[:2]
    assert ours[2] == pytest.approx(theirs[2], abs=tolerance)
    assert_same_logs(ours[3], theirs[3], tolerance)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_predictions_are_those_of_transformers(both, settings):
    def run(library):
        trainer = library.trainer(bert_classifier(), **settings)
        output = trainer.predict(sentences(19))
        return output.predictions, output.label_ids, lasting(output.metrics), type(output).__name__

    theirs, ours = both(run)
    tolerance = 1e-3 if "fp16_full_eval" in settings else 1e-5
    assert ours[2:] == (pytest.approx(theirs[2], abs=tolerance), theirs[3])
    for mine, other in zip(ours[:2], theirs[:2], strict=True):
        assert type(mine) is type(other)
        if isinstance(mine, list):
            assert len(mine) == len(other)
            mine, other = np.concatenate(mine), np.concatenate(other)
        if mine is not None:
            np.testing.assert_allclose(mine, other, atol=1e-6)


def test_metrics_batch_by_batch(both):
    def run(library):
        metric = Counted()
        data = {"eval_dataset": sentences(19), "compute_metrics": metric}
        trainer = library.trainer(bert_classifier(), trainer=data, batch_eval_metrics=True)
        metrics = lasting(trainer.evaluate())
        output = trainer.predict(sentences(19))
        return metrics, output.predictions.shape, metric.calls

    theirs, ours = both(run)
    assert ours[0] == pytest.approx(theirs[0])
    assert ours[1:] == theirs[1:]
    assert ours[0]["eval_calls"] == 3


def test_metrics_batch_by_batch_need_to_know_the_last_batch(both):
    def run(library):
        data = {"eval_dataset": sentences(8), "compute_metrics": accuracy}
        with pytest.raises(ValueError, match="compute_result"):
            library.trainer(bert_classifier(), trainer=data, batch_eval_metrics=True)

    both(run)


@pytest.mark.parametrize("batched", [False, True])
def test_inputs_and_losses_reach_the_metrics(both, batched):
    def run(library):
        seen = []

        def metric(prediction, compute_result=True):
            inputs = prediction.inputs["input_ids"] if batched else prediction.inputs
            seen.append((np.asarray(inputs).sum().item(), float(np.asarray(prediction.losses).sum())))
            return {"seen": len(seen)} if compute_result else {}

        data = {"eval_dataset": sentences(19), "compute_metrics": metric}
        trainer = library.trainer(
            bert_classifier(), trainer=data, include_for_metrics=["inputs", "loss"], batch_eval_metrics=batched
        )
        trainer.evaluate()
        return seen

    theirs, ours = both(run)
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
    full = ours if not batched else ours[:-1]  # in transformers the last batch counts as a full one
    assert [loss for _, loss in full] == pytest.approx([loss for _, loss in theirs[: len(full)]], abs=1e-4)


def test_a_dictionary_of_datasets(both):
    def run(library):
        data = {
            "train_dataset": sentences(),
            "eval_dataset": {"short": sentences(5), "long": sentences(11, seed=2)},
            "compute_metrics": accuracy,
        }
        settings = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "eval_long_accuracy"}
        trainer = library.trainer(bert_classifier(), trainer=data, max_steps=4, **settings)
        trainer.train()
        names = [list(trainer.evaluate()), list(trainer.evaluate("short")), list(trainer.evaluate(sentences(3)))]
        return trainer.state.log_history, trainer.state.best_metric, names

    theirs, ours = both(run)
    assert_same_logs(ours[0], theirs[0])
    assert ours[1:] == theirs[1:]


def test_metrics_that_are_chosen_with_the_dataset(both):
    def run(library):
        class Choosing(library.module.Trainer):
            def get_eval_dataloader(self, eval_dataset=None):
                self.compute_metrics = {"short": accuracy}.get(eval_dataset)
                return super().get_eval_dataloader(eval_dataset)

        data = {"eval_dataset": {"short": sentences(5), "long": sentences(11, seed=2)}}
        return list(library.trainer(bert_classifier(), trainer=data, kind=Choosing).evaluate())

    theirs, ours = both(run)
    assert ours == theirs
    assert "eval_short_accuracy" in ours


def test_a_language_model_has_the_same_eval_loss(both):
    def run(library):
        data = {"eval_dataset": texts(11), "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1)}
        trainer = library.trainer(
            gpt2(), trainer={**data, "compute_metrics": lambda p: {"size": p.predictions.size}}, bf16=False
        )
        return lasting(trainer.evaluate())

    theirs, ours = both(run)
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_outputs_that_are_left_out(both):
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x, labels=None):
            loss = {} if labels is None else {"loss": (x * self.weight - labels).square().mean()}
            return {**loss, "logits": x * self.weight, "hidden": (x, x + 1), "extra": x.sum(-1, keepdim=True)}

    def run(library):
        rows = [{"x": torch.full((3,), float(i)), "labels": torch.ones(3)} for i in range(5)]
        trainer = library.trainer(Many())
        results = []
        for keys in (None, ["extra"], ["extra", "hidden"]):
            predictions = trainer.predict(rows, ignore_keys=keys).predictions
            results.append(
                predictions if isinstance(predictions, np.ndarray) else [np.asarray(p) for p in predictions]
            )
        return results

    theirs, ours = both(run)
    for mine, other in zip(ours, theirs, strict=True):
        assert len(mine) == len(other)
        for one, two in zip(mine, other, strict=True):
            np.testing.assert_allclose(one, two)


def test_a_model_that_gives_a_loss_without_labels(both):
    class Contrastive(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x, return_loss=True):
            similarity = x @ x.T * self.scale
            target = torch.arange(len(x), device=x.device)
            loss = nn.functional.cross_entropy(similarity, target) if return_loss else None
            return {"loss": loss, "similarity": similarity.diagonal()}

    def run(library):
        rows = [{"x": torch.randn(4, generator=torch.Generator().manual_seed(i))} for i in range(10)]
        trainer = library.trainer(Contrastive(), trainer={"eval_dataset": rows, "train_dataset": rows}, max_steps=2)
        trainer.train()
        trainer.evaluate()
        return trainer.state.log_history, trainer.predict(rows).label_ids

    theirs, ours = both(run)
    assert_same_logs(ours[0], theirs[0])
    assert ours[1] == theirs[1]


def test_a_batch_counts_for_its_examples_whatever_made_it(tmp_path):
    """In transformers the last of 4, 4 and 2 counts for four: see docs/differences.md."""
    data = pairs.rows(10)

    def collate(part):
        return {"x": torch.stack([row["x"] for row in part]), "labels": torch.tensor([row["labels"] for row in part])}

    def loss(package):
        class Own(package.Trainer):
            def get_eval_dataloader(self, eval_dataset=None):
                return DataLoader(data, batch_size=4, collate_fn=collate)

        model = pairs.Net().eval()
        trainer = pairs.make(package, tmp_path, {"model": model}, kind=Own)
        return trainer.evaluate()["eval_loss"], model(**collate(data))["loss"].item()

    torch.manual_seed(0)
    ours, mean = loss(mps_trainer)
    assert ours == pytest.approx(mean, abs=1e-6)
    torch.manual_seed(0)
    theirs, mean = loss(transformers)
    assert abs(theirs - mean) > 0.05
