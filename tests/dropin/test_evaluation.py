"""Metrics and predictions, number for number as in transformers."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from tests.tiny import tiny

from ..conftest import accuracy
from .conftest import assert_same, sentences

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
def test_metrics_and_predictions_are_those_of_transformers(assert_same_runs, settings):
    def run(library):
        metric = None if settings.get("eval_do_concat_batches") is False else accuracy
        trainer = library.trainer(eval_dataset=sentences(19), compute_metrics=metric, **settings)
        metrics = trainer.evaluate()
        assert list(trainer.evaluate()) == list(metrics)
        return trainer, trainer.predict(sentences(19))

    # in float16 transformers takes the mean of the losses in float16, too
    assert_same_runs(run, 1e-3 if "fp16_full_eval" in settings else 1e-5)


def test_batches_joined_in_one_row_count_by_their_examples(assert_same_runs):
    def run(library):
        model, rows = tiny("LlamaForCausalLM"), [{"input_ids": [1 + i, *range(9)]} for i in range(10)]
        collator = transformers.DataCollatorWithFlattening()
        metrics = library.trainer(model, data_collator=collator, eval_dataset=rows).evaluate()
        return metrics, round(metrics["eval_runtime"] * metrics["eval_samples_per_second"])

    assert assert_same_runs(run)[1] == 10


@pytest.mark.parametrize("batched", [False, True])
def test_metrics_get_inputs_and_losses_of_all_examples_or_of_each_batch(both, batched):
    def run(library):
        seen, losses = [], []

        def metric(prediction, compute_result=True):
            inputs = prediction.inputs["input_ids"] if batched else prediction.inputs
            right = (prediction.predictions.argmax(-1) == prediction.label_ids).sum()
            seen.append((np.asarray(inputs).sum().item(), int(right), compute_result))
            losses.append(float(np.asarray(prediction.losses).sum()))
            return {"seen": len(seen)} if compute_result else {}

        settings = {"include_for_metrics": ["inputs", "loss"], "batch_eval_metrics": batched}
        trainer = library.trainer(eval_dataset=sentences(19), compute_metrics=metric, **settings)
        metrics = trainer.evaluate()
        full = losses[: 2 if batched else 1]  # in transformers the last batch counts as a full one
        return full, seen, metrics, trainer.predict(sentences(19)).predictions.shape

    theirs, ours = both(run)
    assert_same(ours, theirs, 1e-4)
    assert ours[2]["eval_seen"] == (3 if batched else 1)


def test_datasets_in_a_dictionary_have_prefixes_of_transformers(assert_same_runs):
    def run(library):
        data = {"short": sentences(5), "long": sentences(11, seed=2)}
        settings = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "eval_long_accuracy"}
        trainer = library.trained(eval_dataset=data, compute_metrics=accuracy, max_steps=4, **settings)
        metrics = [trainer.evaluate(), trainer.evaluate("short"), trainer.evaluate(sentences(3))]
        return trainer, trainer.state.best_metric, metrics

    assert_same_runs(run)


def test_datasets_in_a_dictionary_reach_an_override_of_evaluate_by_keyword(assert_same_runs):
    def run(library):
        class Named(library.module.Trainer):
            def evaluate(self, *, eval_dataset=None, metric_key_prefix="eval", ignore_keys=None):
                return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

        return library.trainer(eval_dataset={"a": sentences(3)}, kind=Named).evaluate()

    assert "eval_a_loss" in assert_same_runs(run)


def test_compute_metrics_set_with_the_loader_is_used(assert_same_runs):
    def run(library):
        class Choosing(library.module.Trainer):
            def get_eval_dataloader(self, eval_dataset=None):
                self.compute_metrics = {"short": accuracy}.get(eval_dataset)
                return super().get_eval_dataloader(eval_dataset)

        data = {"short": sentences(5), "long": sentences(11, seed=2)}
        return library.trainer(eval_dataset=data, kind=Choosing).evaluate()

    assert "eval_short_accuracy" in assert_same_runs(run)


@pytest.mark.parametrize("scores", [[np.nan, 0.1, 0.2], [np.nan] * 3], ids=str)
def test_early_stopping_counts_from_a_first_metric_of_nan_as_transformers_does(assert_same_runs, scores):
    def run(library):
        left = iter(scores)
        settings = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "score"}
        settings |= {"save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True}
        stopping = transformers.EarlyStoppingCallback()
        trainer = library.trained(compute_metrics=lambda _: {"score": next(left)}, callbacks=[stopping], **settings)
        state = trainer.state
        best = state.best_model_checkpoint and state.best_model_checkpoint.rpartition("/")[2]
        return state.global_step, state.best_metric, best

    assert_same_runs(run)


@pytest.mark.parametrize("ignored", [None, ["extra"], ["extra", "hidden"]])
def test_ignored_outputs_are_left_out_of_predictions(assert_same_runs, ignored):
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x, labels=None):
            loss = {} if labels is None else {"loss": (x * self.weight - labels).square().mean()}
            return {**loss, "logits": x * self.weight, "hidden": (x, x + 1), "extra": x.sum(-1, keepdim=True)}

    def run(library):
        rows = [{"x": torch.full((3,), float(i)), "labels": torch.ones(3)} for i in range(5)]
        return library.trainer(Many()).predict(rows, ignore_keys=ignored).predictions

    assert_same_runs(run)


@pytest.mark.parametrize("settings", [{}, {"batch_eval_metrics": True}, {"include_for_metrics": ["loss"]}], ids=str)
@pytest.mark.parametrize("outputs", ["dict", "tuple", "list", "ignored", "list of three"])
def test_metrics_without_predictions_equal_transformers(assert_same_runs, outputs, settings):
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x, labels=None):
            loss = (x * self.weight - labels).square().mean()
            shapes = {"dict": {"loss": loss}, "tuple": (loss,), "list": [loss], "list of three": [loss, x, x + 1]}
            return shapes.get(outputs, {"loss": loss, "logits": x})

    def run(library):
        calls = []

        def metric(prediction, compute_result=True):
            calls.append((prediction.predictions, prediction.label_ids, prediction.losses))
            return {"mean": float(np.asarray(prediction.label_ids).mean())}

        rows = [{"x": torch.full((3,), float(i)), "labels": torch.full((3,), float(i % 3))} for i in range(8)]
        trainer = library.trainer(Counted(), compute_metrics=metric, eval_dataset=rows, **settings)
        ignored = ["logits"] if outputs == "ignored" else None
        found = trainer.evaluate(ignore_keys=ignored), trainer.predict(rows, ignore_keys=ignored)
        return [[*each] if isinstance(each, tuple) else each for each in found], calls

    assert assert_same_runs(run)[1]


def test_model_with_return_loss_is_evaluated_without_labels(assert_same_runs):
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
        data = {"eval_dataset": rows, "train_dataset": rows}
        trainer = library.trained(Contrastive(), evaluate=True, max_steps=2, **data)
        return trainer, trainer.predict(rows).label_ids

    assert_same_runs(run)


def test_model_that_draws_gets_numbers_of_transformers_where_batches_draw_too(assert_same_runs):
    """ViTMAE masks patches at random, of images that are cropped at random."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x, return_loss=True):
            return {"loss": (x * self.weight * (torch.rand(x.shape) < 0.5)).sum()}

    def run(library):
        rows = [{"x": i} for i in range(20)]
        data = {"train_dataset": rows, "eval_dataset": rows, "eval_strategy": "steps", "eval_steps": 1}
        data["data_collator"] = lambda items: {"x": torch.rand(len(items), 4)}
        return library.trained(Masked(), evaluate=True, **data)

    assert_same_runs(run)
