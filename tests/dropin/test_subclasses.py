"""Overrides of subclasses written for transformers' Trainer are called, and so is what code replaces later."""

import functools
import warnings
from unittest import mock

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import Trainer as TheirTrainer
from transformers import TrainerCallback
from transformers.trainer_pt_utils import metrics_format

from mps_trainer import Trainer, trainer_checks

from ..conftest import Stream, callback, refusal
from .conftest import assert_same, bert_classifier, gpt2, sentences, texts

HOOKS = [
    "get_train_dataloader", "get_eval_dataloader", "get_test_dataloader", "create_optimizer", "create_scheduler",
    "get_decay_parameter_names", "get_batch_samples", "training_step", "compute_loss", "compute_loss_context_manager",
    "_prepare_inputs", "floating_point_ops", "store_flos", "prediction_step", "evaluation_loop", "evaluate", "predict",
    "log", "_maybe_log_save_evaluate", "_evaluate", "_determine_best_metric", "_save_checkpoint", "save_model",
    "_save", "_load_best_model", "_get_train_sampler", "_get_eval_sampler", "_get_collator_with_removed_columns",
    "_set_signature_columns_if_needed", "_track_num_input_tokens", "_clip_grad_norm", "_get_grad_norm",
    "_get_learning_rate", "_wrap_model", "_move_model_to_device", "_load_from_checkpoint", "_load_rng_state",
    "_load_optimizer_and_scheduler", "_save_rng_state", "_save_optimizer_and_scheduler", "_hp_search_setup",
    "_get_output_dir", "set_initial_training_values", "_finalize_training", "_get_dataloader",
    "_remove_unused_columns",
]  # fmt: skip


def recording(trainer_class: type, calls: list[str]) -> type:
    def noting(name):
        def method(self, *args, **kwargs):
            calls.append(name)
            return getattr(trainer_class, name)(self, *args, **kwargs)

        return method

    return type("Recording", (trainer_class,), {name: noting(name) for name in HOOKS})


def test_overridden_methods_are_called_as_often_as_in_transformers(both):
    def run(library):
        calls: list[str] = []
        settings = {
            "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 4,
            "load_best_model_at_end": True, "gradient_accumulation_steps": 2, "include_num_input_tokens_seen": "all",
        }  # fmt: skip
        settings |= {"kind": recording(library.module.Trainer, calls), "train_dataset": Dataset.from_list(sentences())}
        library.trained(**settings)
        library.trained(resume=True, **{**settings, "max_steps": 6}).predict(sentences(8))
        return {name: calls.count(name) for name in HOOKS}

    theirs, ours = both(run)
    assert [name for name in HOOKS if theirs[name] and not ours[name]] == []
    same = ["training_step", "compute_loss", "prediction_step", "evaluate", "log", "_save_checkpoint", "_save"]
    for name in (*same, "_get_dataloader", "_remove_unused_columns"):
        assert ours[name] == theirs[name], name


def weighted_loss(self, model, inputs, return_outputs=False, **kwargs):
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    loss = nn.functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 3.0]))
    return (loss, outputs) if return_outputs else loss


def loss_over_items(self, model, inputs, return_outputs=False, num_items_in_batch=None):
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    loss = nn.functional.cross_entropy(logits, targets, reduction="mean" if num_items_in_batch is None else "sum")
    loss = loss if num_items_in_batch is None else loss / num_items_in_batch
    return (loss, outputs) if return_outputs else loss


def regularized_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
    loss, outputs = super(type(self), self).compute_loss(model, inputs, True, num_items_in_batch=num_items_in_batch)
    loss = loss + 1e-3 * sum(p.square().sum() for p in model.parameters())
    return (loss, outputs) if return_outputs else loss


def loss_with_product(self, model, inputs, return_outputs=False, num_items_in_batch=None):
    """Under autocast the product would be rounded to 8 bits, and the loss with it."""
    outputs = model(**inputs)
    similar = 10 * outputs.logits @ outputs.logits.T
    loss = nn.functional.cross_entropy(outputs.logits, inputs["labels"]) + similar.square().mean()
    return (loss, outputs) if return_outputs else loss


def models_loss(self, model, inputs, return_outputs=False, **kwargs):
    outputs = model(**inputs)
    return (outputs.loss, outputs) if return_outputs else outputs.loss


def own_training_step(self, model, inputs, num_items_in_batch=None):
    model.train()
    inputs = self._prepare_inputs(inputs)
    with self.compute_loss_context_manager():
        loss = self.compute_loss(model, inputs)
    loss = loss / self.args.gradient_accumulation_steps
    self.accelerator.backward(loss)
    assert self.accelerator.sync_gradients in (True, False)
    assert self.is_in_train
    return loss.detach()


def given_loss(outputs, labels, num_items_in_batch=None):
    return nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


# Each entry has the model and its data, the overrides of the subclass, and arguments.
CLASSIFIER, CAUSAL = (bert_classifier, sentences), (gpt2, texts)
LOSSES = {
    "weighted": (CLASSIFIER, {"compute_loss": weighted_loss}, {}),
    "over the items": (CAUSAL, {"compute_loss": loss_over_items}, {}),
    "over the items of several batches": (
        CAUSAL, {"compute_loss": loss_over_items}, {"gradient_accumulation_steps": 3},
    ),
    "regularized": (CAUSAL, {"compute_loss": regularized_loss}, {}),
    "regularized, several batches": (CAUSAL, {"compute_loss": regularized_loss}, {"gradient_accumulation_steps": 3}),
    "float32 under autocast": (CLASSIFIER, {"compute_loss": loss_with_product}, {"bf16": True}),
    "normalised by the subclass": (
        CLASSIFIER, {"compute_loss": models_loss, "loss_is_scaled_for_ga": False}, {"gradient_accumulation_steps": 2},
    ),
    "compute_loss_func": (CLASSIFIER, {}, {"compute_loss_func": given_loss, "gradient_accumulation_steps": 2}),
    "training_step": (CLASSIFIER, {"training_step": own_training_step}, {"gradient_accumulation_steps": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_own_loss_gives_same_logs_and_no_warning(assert_same_runs, name):
    (model, rows), members, settings = LOSSES[name]
    if not all(hasattr(TheirTrainer, member) for member in members):
        pytest.skip("transformers 5.20, the last for Python 3.10, has no loss_is_scaled_for_ga")

    def run(library):
        own = {"kind": type("Own", (library.module.Trainer,), members), "train_dataset": rows()}
        steps = {"per_device_train_batch_size": 2, "max_steps": 3}
        trainer = library.trainer(model(), eval_dataset=rows(9, seed=1), **{**own, **steps, **settings})
        trainer.evaluate()
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*loss_is_scaled_for_ga")
            trainer.train()
        return trainer

    assert_same_runs(run)


def test_settings_that_a_subclass_changes_hold_for_models_of_model_init(library):
    changed = {"can_return_loss": True, "label_names": ["start"], "model_accepts_loss_kwargs": False}

    class Changes(library.kind("Trainer")):
        def __init__(self, *given, **settings):
            super().__init__(*given, **settings)
            vars(self).update(changed)

    trainer = library.trained(kind=Changes, model_init=lambda: bert_classifier(), max_steps=1)
    assert changed.items() <= vars(trainer).items()


ATTRIBUTES = [
    "args", "model", "model_wrapped", "optimizer", "lr_scheduler", "state", "control", "callback_handler",
    "processing_class", "is_in_train", "accelerator", "data_collator", "train_dataset", "eval_dataset", "model_init",
    "compute_metrics", "compute_loss_func", "preprocess_logits_for_metrics", "label_names", "label_smoother",
    "can_return_loss", "place_model_on_device", "is_model_parallel", "is_deepspeed_enabled", "is_fsdp_enabled",
    "deepspeed", "hub_model_id", "hp_name", "hp_search_backend", "current_flos", "neftune_noise_alpha",
    "model_accepts_loss_kwargs", "gather_function", "optimizer_cls_and_kwargs", "_train_batch_size",
    "_signature_columns", "_created_lr_scheduler", "_memory_tracker", "is_fsdp_xla_enabled",
]  # fmt: skip


def test_attributes_of_transformers_exist_before_and_during_training(both):
    def run(library):
        def read(**_):
            found.update({("during", name) for name in ATTRIBUTES if hasattr(trainer, name)})

        trainer = library.trainer(max_steps=1)
        found = {("before", name) for name in ATTRIBUTES if hasattr(trainer, name)}
        trainer.add_callback(callback(on_step_end=read))
        trainer.train()
        return found

    theirs, ours = both(run)
    assert theirs - ours == set()
    assert len(theirs) > 60


@pytest.mark.parametrize("name", trainer_checks._NOT_CALLED)
def test_override_that_would_not_be_called_is_refused(make_trainer, name):
    kind = type("Own", (Trainer,), {name: lambda self, *args, **kwargs: None})
    assert f"Own overrides {name}()" in refusal(make_trainer, {"kind": kind})


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        ({"num_train_epochs": 2}, list),
        ({"num_train_epochs": 1.5, "gradient_accumulation_steps": 3}, list),
        ({"max_steps": 7, "gradient_accumulation_steps": 2}, list),
        ({"max_steps": 7, "gradient_accumulation_steps": 2}, Stream),
        ({"max_steps": 7, "dataloader_drop_last": True}, list),
        ({"max_steps": 7, "dataloader_drop_last": True}, Stream),
    ],
)
def test_set_initial_training_values_returns_sizes_of_transformers(assert_same_runs, settings, data):
    def run(library):
        trainer = library.trainer(train_dataset=data(sentences(18)), **settings)
        return trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())

    assert_same_runs(run)


def test_subclass_changes_number_of_steps_and_final_metrics(assert_same_runs):
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
        trainer = library.trainer(kind=Own, max_steps=3)
        output = trainer.train()
        assert output.metrics["own"] == 1.0
        return seen, output.global_step, len(trainer.state.log_history)

    assert_same_runs(run)


def test_override_that_logs_by_itself_resumes_with_the_same_logs(assert_same_runs):
    """ms-swift and TRL's OnlineDPOTrainer copy this part of transformers' method."""

    def run(library):
        class Logs(library.module.Trainer):
            def _maybe_log_save_evaluate(self, tr_loss, grad_norm, *args, **kwargs):
                if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
                    self.control.should_log = False
                    self._total_loss_scalar += tr_loss.item()
                    steps = self.state.global_step - self._globalstep_last_logged
                    self.log({"loss": tr_loss.item() / steps, "own": steps})
                    tr_loss -= tr_loss
                    self._globalstep_last_logged = self.state.global_step
                    self.store_flos()
                return super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

        settings = {"kind": Logs, "max_steps": 5, "logging_steps": 2, "save_strategy": "steps", "save_steps": 3}
        whole = library.trained(**settings)
        resumed = library.trained(**settings, resume=library.folder / "checkpoint-3")
        if library.is_ours:
            assert_same(resumed.state.log_history, whole.state.log_history, resumed=True)
        return whole

    assert len(assert_same_runs(run).state.log_history) == 3


def test_subclass_that_loads_weights_itself_is_warned_of_other_keys(make_trainer, caplog):
    trainer = make_trainer()
    weights = trainer.model.state_dict()
    left_out = weights.popitem()[0]
    trainer._issue_warnings_after_load(trainer.model.load_state_dict({**weights, "new": torch.ones(1)}, strict=False))
    missing, unexpected = caplog.messages
    assert f"missing keys in the checkpoint model loaded: ['{left_out}']" in missing
    assert "unexpected keys in the checkpoint model loaded: ['new']" in unexpected
    caplog.clear()
    trainer.model._keys_to_ignore_on_save = [left_out]
    trainer._issue_warnings_after_load(trainer.model.load_state_dict(weights, strict=False))
    assert caplog.messages == []


def test_metrics_format_and_parallel_sizes_are_those_of_transformers(both):
    metrics = {"train_runtime": 12.345, "total_flos": 2.0**31, "train_loss": 0.123456, "epoch": 3.0}

    def run(library):
        trainer = library.trainer()
        return trainer.get_tp_size(), trainer.get_cp_size(), trainer.get_sp_size()

    assert both(run) == ((1, 1, 1),) * 2
    assert Trainer.metrics_format(metrics) == metrics_format(metrics)


def at_first(event, work):
    """Returns a callback that calls `work` at the first event of a kind."""
    once = functools.cache(work)
    return callback(**{event: lambda **_: once()})


def with_sgd(trainer):
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1, gamma=0.5)


def with_new_schedule(trainer):
    trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1, gamma=0.1)


@pytest.mark.parametrize("event", ["on_train_begin", "on_step_end"])
@pytest.mark.parametrize("change", [with_sgd, with_new_schedule])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
def test_optimizer_or_schedule_replaced_by_callback_is_used(assert_same_runs, event, change, max_grad_norm):
    def run(library):
        trainer = library.trainer(max_steps=4, max_grad_norm=max_grad_norm)
        trainer.add_callback(at_first(event, lambda: change(trainer)))
        trainer.train()
        return trainer, trainer.model.state_dict()

    assert_same_runs(run)


@pytest.mark.parametrize("name", ["log", "_get_learning_rate", "get_batch_samples", "_clip_grad_norm", "store_flos"])
def test_method_replaced_by_callback_is_called(make_trainer, name):
    trainer = make_trainer(max_steps=2)
    watched = mock.Mock(wraps=getattr(trainer, name))
    trainer.add_callback(at_first("on_train_begin", lambda: setattr(trainer, name, watched)))
    trainer.train()
    assert watched.call_count >= 2


@pytest.mark.parametrize("name", ["save_model", "_save", "_save_optimizer_and_scheduler", "_save_rng_state"])
def test_writer_patched_on_the_class_is_called_with_save_async(make_trainer, name):
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=1, save_async=True)
    with mock.patch.object(Trainer, name, autospec=True, side_effect=getattr(Trainer, name)) as patched:
        trainer.train()
    assert patched.call_count == 2


def test_loss_of_patched_training_step_may_change_later(make_trainer):
    original = Trainer.training_step

    def changed(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        losses.append(loss)
        return loss

    losses = []
    trainer = make_trainer(max_steps=2, logging_steps=2)
    trainer.add_callback(at_first("on_step_end", lambda: losses[0].zero_()))
    with mock.patch.object(Trainer, "training_step", changed):
        trainer.train()
    first, second = trainer.state.log_history[0]["loss"], trainer.state.log_history[1]["train_loss"]
    assert first == pytest.approx(second)
    assert first > losses[1].item() / 2 + 0.1  # the mean has the first loss as it was


def test_callbacks_get_replaced_arguments(make_trainer, make_args):
    seen = mock.Mock(spec=TrainerCallback)
    trainer = make_trainer({"callbacks": [seen]})
    trainer.args = make_args(seed=7)
    trainer.evaluate()
    assert seen.on_evaluate.call_args.args[0] is trainer.args


def test_compute_metrics_replaced_during_evaluation_is_used(make_trainer):
    class Chooses(Trainer):
        def prediction_step(self, *args, **kwargs):
            self.compute_metrics = lambda prediction: {"chosen": 1.0}
            return super().prediction_step(*args, **kwargs)

    trainer = make_trainer({"kind": Chooses, "compute_metrics": lambda prediction: {"given": 1.0}})
    assert "eval_chosen" in trainer.evaluate()


def test_state_may_be_set_before_super_init(trained):
    class Early(Trainer):
        def __init__(self, *args, **kwargs):
            self.state = self.control = None
            super().__init__(*args, **kwargs)

    trainer = trained({"kind": Early}, max_steps=1)
    assert trainer.state.global_step == 1
