"""Subclasses written for transformers' Trainer: the methods they override are called, and what they touch is there."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import TrainerCallback
from transformers.trainer_pt_utils import metrics_format

from mps_trainer import MisconfigurationException, Trainer, trainer_checks

from .conftest import assert_same_logs, bert_classifier, gpt2, lasting, sentences, texts

HOOKS = [
    "get_train_dataloader",
    "get_eval_dataloader",
    "get_test_dataloader",
    "create_optimizer",
    "create_scheduler",
    "get_decay_parameter_names",
    "get_batch_samples",
    "training_step",
    "compute_loss",
    "compute_loss_context_manager",
    "_prepare_inputs",
    "floating_point_ops",
    "store_flos",
    "prediction_step",
    "evaluation_loop",
    "evaluate",
    "predict",
    "log",
    "_maybe_log_save_evaluate",
    "_evaluate",
    "_determine_best_metric",
    "_save_checkpoint",
    "save_model",
    "_save",
    "_load_best_model",
    "_get_train_sampler",
    "_get_eval_sampler",
    "_get_collator_with_removed_columns",
    "_set_signature_columns_if_needed",
    "_track_num_input_tokens",
    "_clip_grad_norm",
    "_get_grad_norm",
    "_get_learning_rate",
    "_wrap_model",
    "_move_model_to_device",
    "_load_from_checkpoint",
    "_load_rng_state",
    "_load_optimizer_and_scheduler",
    "_save_rng_state",
    "_save_optimizer_and_scheduler",
    "_hp_search_setup",
    "_get_output_dir",
    "set_initial_training_values",
    "_finalize_training",
]


class Stream(IterableDataset):
    def __init__(self, rows: list[dict]) -> None:
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def recording(trainer_class: type, calls: list[str]) -> type:
    """A subclass that notes each call of a method in HOOKS and then does what the method does."""

    def noting(name):
        def method(self, *args, **kwargs):
            calls.append(name)
            return getattr(trainer_class, name)(self, *args, **kwargs)

        return method

    return type("Recording", (trainer_class,), {name: noting(name) for name in HOOKS})


def test_every_method_that_subclasses_override_is_called(both):
    def run(library):
        calls: list[str] = []
        data = {"train_dataset": sentences(), "eval_dataset": sentences(8)}
        settings = {
            "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 4,
            "load_best_model_at_end": True, "gradient_accumulation_steps": 2, "include_num_input_tokens_seen": "all",
        }  # fmt: skip
        kind = recording(library.module.Trainer, calls)
        library.trainer(bert_classifier(), kind=kind, trainer=data, **settings).train()
        trainer = library.trainer(bert_classifier(), kind=kind, trainer=data, **{**settings, "max_steps": 6})
        trainer.train(resume_from_checkpoint=True)
        trainer.predict(sentences(8))
        return {name: calls.count(name) for name in HOOKS}

    theirs, ours = both(run)
    assert [name for name in HOOKS if theirs[name] and not ours[name]] == []
    for name in ("training_step", "compute_loss", "prediction_step", "evaluate", "log", "_save_checkpoint", "_save"):
        assert ours[name] == theirs[name], name


def test_a_loss_of_ones_own(both):
    def run(library):
        class Weighted(library.module.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
                labels = inputs.pop("labels")
                outputs = model(**inputs)
                loss = nn.functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 3.0]))
                return (loss, outputs) if return_outputs else loss

        data = {"train_dataset": sentences(), "eval_dataset": sentences(8)}
        trainer = library.trainer(bert_classifier(), kind=Weighted, trainer=data, max_steps=3)
        trainer.train()
        trainer.evaluate()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_loss_of_ones_own_over_the_items_of_the_update(both, accumulation):
    def run(library):
        class Summed(library.module.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                labels = inputs.pop("labels")
                outputs = model(**inputs)
                logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
                how = "mean" if num_items_in_batch is None else "sum"
                loss = nn.functional.cross_entropy(logits, targets, reduction=how)
                loss = loss if num_items_in_batch is None else loss / num_items_in_batch
                return (loss, outputs) if return_outputs else loss

        settings = {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 2, "max_steps": 3}
        trainer = library.trainer(gpt2(), kind=Summed, trainer={"train_dataset": texts()}, **settings)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*loss_is_scaled_for_ga")
            trainer.train()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_loss_that_adds_to_the_models_own(both, accumulation):
    def run(library):
        class Regularized(library.module.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch=num_items_in_batch)
                loss = loss + 1e-3 * sum(p.square().sum() for p in model.parameters())
                return (loss, outputs) if return_outputs else loss

        settings = {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 2, "max_steps": 3}
        trainer = library.trainer(gpt2(), kind=Regularized, trainer={"train_dataset": texts()}, **settings)
        trainer.train()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


def test_a_loss_of_ones_own_computes_in_float32(both):
    """Under autocast its product would be rounded to 8 bits, and the loss with it."""

    def run(library):
        class Own(library.module.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                outputs = model(**inputs)
                similar = 10 * outputs.logits @ outputs.logits.T
                loss = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"]) + similar.square().mean()
                return (loss, outputs) if return_outputs else loss

        data = {"train_dataset": sentences(), "eval_dataset": sentences(9, seed=1)}
        trainer = library.trainer(bert_classifier(), kind=Own, trainer=data, max_steps=4, bf16=True)
        evaluated = trainer.evaluate()
        trainer.train()
        trainer.evaluate()
        return lasting(evaluated), trainer.state.log_history

    theirs, ours = both(run)
    assert ours[0] == pytest.approx(theirs[0], abs=1e-5)
    assert_same_logs(ours[1], theirs[1])


def test_a_loss_function_given_to_the_trainer(both):
    def summed(outputs, labels, num_items_in_batch=None):
        loss = nn.functional.cross_entropy(outputs.logits, labels, reduction="sum")
        return loss / num_items_in_batch

    def run(library):
        data = {"train_dataset": sentences(), "eval_dataset": sentences(8), "compute_loss_func": summed}
        settings = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "max_steps": 3}
        trainer = library.trainer(bert_classifier(), trainer=data, **settings)
        trainer.train()
        trainer.evaluate()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


def test_a_training_step_of_ones_own(both):
    def run(library):
        class Step(library.module.Trainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                model.train()
                inputs = self._prepare_inputs(inputs)
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, inputs)
                loss = loss / self.args.gradient_accumulation_steps
                self.accelerator.backward(loss)
                assert self.accelerator.sync_gradients in (True, False)
                assert self.is_in_train
                return loss.detach()

        settings = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "max_steps": 3}
        trainer = library.trainer(bert_classifier(), kind=Step, trainer={"train_dataset": sentences()}, **settings)
        trainer.train()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


def test_a_prediction_step_of_ones_own(both):
    def run(library):
        class Step(library.module.Trainer):
            def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
                inputs = self._prepare_inputs(inputs)
                with torch.no_grad():
                    logits = model(**{k: v for k, v in inputs.items() if k != "labels"}).logits
                return None, logits.argmax(-1), inputs["labels"]

        def accuracy(prediction):
            return {"accuracy": (prediction.predictions == prediction.label_ids).mean()}

        data = {"eval_dataset": sentences(9), "compute_metrics": accuracy}
        trainer = library.trainer(bert_classifier(), kind=Step, trainer=data)
        return [name for name in trainer.evaluate() if "_" in name], trainer.evaluate()["eval_accuracy"]

    theirs, ours = both(run)
    assert ours == theirs


ATTRIBUTES = [
    "args", "model", "model_wrapped", "optimizer", "lr_scheduler", "state", "control", "callback_handler",
    "processing_class", "is_in_train", "accelerator", "data_collator", "train_dataset", "eval_dataset", "model_init",
    "compute_metrics", "compute_loss_func", "preprocess_logits_for_metrics", "label_names", "label_smoother",
    "can_return_loss", "place_model_on_device", "is_model_parallel", "is_deepspeed_enabled", "is_fsdp_enabled",
    "deepspeed", "hub_model_id", "hp_name", "hp_search_backend", "current_flos", "neftune_noise_alpha",
    "model_accepts_loss_kwargs", "gather_function", "optimizer_cls_and_kwargs", "_train_batch_size",
    "_signature_columns", "_created_lr_scheduler", "_memory_tracker", "is_fsdp_xla_enabled",
]  # fmt: skip


def test_the_attributes_that_subclasses_read_are_there(both):
    def run(library):
        class Reads(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                seen.update({name: hasattr(trainer, name) for name in ATTRIBUTES})

        seen: dict[str, bool] = {}
        trainer = library.trainer(bert_classifier(), trainer={"train_dataset": sentences()}, max_steps=1)
        before = {name: hasattr(trainer, name) for name in ATTRIBUTES}
        trainer.add_callback(Reads)
        trainer.train()
        return before, seen

    theirs, ours = both(run)
    assert [name for name in ATTRIBUTES if theirs[0][name] and not ours[0][name]] == []
    assert [name for name in ATTRIBUTES if theirs[1][name] and not ours[1][name]] == []
    assert sum(theirs[0].values()) > 30


def test_warnings_about_a_loss_that_may_be_counted_twice_can_be_silenced(both, recwarn):
    def run(library):
        class Mean(library.module.Trainer):
            loss_is_scaled_for_ga = False

            def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
                outputs = model(**inputs)
                return (outputs.loss, outputs) if return_outputs else outputs.loss

        settings = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "max_steps": 2}
        trainer = library.trainer(bert_classifier(), kind=Mean, trainer={"train_dataset": sentences()}, **settings)
        trainer.train()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert not [w for w in recwarn if "loss_is_scaled_for_ga" in str(w.message)]
    if hasattr(__import__("transformers").Trainer, "loss_is_scaled_for_ga") or theirs[0]["loss"] < 1:
        assert_same_logs(ours, theirs)


@pytest.mark.parametrize("name", trainer_checks._NOT_CALLED)
def test_a_method_that_would_not_be_called_is_refused(make_trainer, name):
    kind = type("Own", (Trainer,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(
        MisconfigurationException, match=rf"Own overrides {name}\(\), which mps_trainer.Trainer does not"
    ):
        make_trainer({"kind": kind})


@pytest.mark.parametrize(
    "settings",
    [
        {"num_train_epochs": 2, "max_steps": -1},
        {"num_train_epochs": 1.5, "max_steps": -1, "gradient_accumulation_steps": 3},
        {"max_steps": 7, "gradient_accumulation_steps": 2},
        {"max_steps": 7, "dataloader_drop_last": True},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_sizes_of_a_run_are_those_of_transformers(both, settings, stream):
    if stream and settings["max_steps"] < 0:
        pytest.skip("A stream needs max_steps.")

    def run(library):
        data = {"train_dataset": Stream(sentences(18)) if stream else sentences(18)}
        trainer = library.trainer(bert_classifier(), trainer=data, **settings)
        return trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())

    theirs, ours = both(run)
    assert ours == theirs


def test_a_subclass_sets_the_steps_of_a_run_and_sees_its_end(both):
    def run(library):
        class Own(library.module.Trainer):
            def set_initial_training_values(self, args, dataloader):
                *values, steps = super().set_initial_training_values(args, dataloader)
                return (*values, steps - 1)

            def _finalize_training(self, trial, num_train_samples, start_time):
                seen.append((trial, num_train_samples, self.state.global_step, self.state.max_steps))
                output = super()._finalize_training(trial, num_train_samples, start_time)
                return output._replace(metrics={**output.metrics, "own": 1.0})

        seen = []
        trainer = library.trainer(bert_classifier(), kind=Own, trainer={"train_dataset": sentences()}, max_steps=3)
        output = trainer.train()
        assert output.metrics["own"] == 1.0
        return seen, output.global_step, len(trainer.state.log_history)

    theirs, ours = both(run)
    assert ours == theirs


def test_metrics_are_formatted_as_in_transformers(make_trainer):
    metrics = {"train_runtime": 12.345, "total_flos": 2.0**31, "train_loss": 0.123456, "epoch": 3.0}
    theirs = metrics_format(metrics)
    assert theirs["total_flos"] == "2GF"
    assert make_trainer().metrics_format(metrics) == Trainer.metrics_format(metrics) == theirs


def test_no_model_is_split_among_processes(both):
    def run(library):
        trainer = library.trainer(bert_classifier())
        return trainer.get_tp_size(), trainer.get_cp_size(), trainer.get_sp_size()

    theirs, ours = both(run)
    assert ours == theirs == (1, 1, 1)
