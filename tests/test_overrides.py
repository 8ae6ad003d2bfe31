"""`Overrides` records in one place which methods of the Trainer are overridden, and what follows."""

import dataclasses

import pytest

from mps_trainer import Trainer
from mps_trainer.overrides import BACKGROUND_SAVES, CLIPPING_IN_STEP, Overrides

FLAGS = [each.name for each in dataclasses.fields(Overrides) if each.name != "disabled_fast_paths"]


def true_in(overrides: Overrides) -> set[str]:
    return {name for name in FLAGS if getattr(overrides, name)}


def bare(kind: type = Trainer) -> Trainer:
    return object.__new__(kind)


EXPECTED = {
    "create_optimizer": {"may_train_other_parameters"},
    "create_optimizer_and_scheduler": {"may_train_other_parameters"},
    "compute_loss": {"may_train_other_parameters", "compute_loss", "compute_losses_or_items"},
    "training_step": {
        "may_train_other_parameters",
        "see_training_batches",
        "training_step",
        "compute_losses_or_items",
    },
    "get_train_dataloader": {"get_train_dataloader"},
    "get_eval_dataloader": {"get_eval_dataloader"},
    "get_batch_samples": {"get_batch_samples", "compute_losses_or_items"},
    "_prepare_inputs": {"move_batches", "see_training_batches", "see_evaluation_batches"},
    "_prepare_input": {"move_batches", "see_training_batches", "see_evaluation_batches"},
    "prediction_step": {"see_evaluation_batches", "prediction_step"},
    "_get_num_items_in_batch": {"get_num_items_in_batch"},
    "_track_num_input_tokens": {"track_num_input_tokens"},
    "split_batch": {"split_batch"},
    "_clip_grad_norm": {"clip_or_measure_gradients"},
    "_get_grad_norm": {"clip_or_measure_gradients"},
    "autocast_smart_context_manager": {"autocast_smart_context_manager"},
    "_maybe_log_save_evaluate": {"maybe_log_save_evaluate"},
    "_save_checkpoint": {"write_checkpoints"},
    "save_model": {"write_checkpoints"},
    "_save": {"write_checkpoints"},
    "_save_optimizer_and_scheduler": {"write_checkpoints"},
    "_save_scaler": {"write_checkpoints"},
    "_save_rng_state": {"write_checkpoints"},
    "_rotate_checkpoints": {"write_checkpoints"},
    "_push_from_checkpoint": {"push_from_checkpoint"},
    "_load_rng_state": {"load_rng_state"},
    "log": {"log"},
    "evaluate": set(),
}


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_an_override_of_a_class_an_instance_or_a_patch_has_its_effects_and_no_others(monkeypatch, name, expected):
    subclass, instance = bare(type("Own", (Trainer,), {name: print})), bare()
    setattr(instance, name, print)
    assert true_in(Overrides.of(subclass)) == true_in(Overrides.of(instance)) == expected
    monkeypatch.setattr(Trainer, name, print)
    assert true_in(Overrides.of(bare())) == expected


def test_every_flag_has_a_method_that_sets_it():
    assert set(FLAGS) == set().union(*EXPECTED.values())
    assert Overrides.of(bare()) == Overrides()


def test_the_sentences_name_each_disabled_fast_path_and_the_methods_to_blame():
    kind = type("Own", (Trainer,), dict.fromkeys(("_clip_grad_norm", "_get_grad_norm", "_save", "log")))
    clipping = "clipping within the optimizer's step, because _clip_grad_norm and _get_grad_norm is overridden"
    overrides = Overrides.of(bare(kind))
    assert overrides.reasons == ["saving while training goes on, because _save is overridden", clipping]
    rest = {CLIPPING_IN_STEP: ("_clip_grad_norm", "_get_grad_norm")}
    assert overrides.without(BACKGROUND_SAVES) == dataclasses.replace(overrides, disabled_fast_paths=rest)


def predicted(model, inputs, prediction_loss_only, ignore_keys=None):
    return model(**inputs)["loss"].detach(), None, None


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_a_method_patched_on_the_instance_before_an_evaluation_alone_counts(make_trainer, mps, call):
    trainer = make_trainer()
    trainer.prediction_step = predicted  # transformers' Trainer moves batches for it, too
    getattr(trainer, call)(trainer.eval_dataset)
    del trainer.prediction_step
    getattr(trainer, call)(trainer.eval_dataset)
    assert trainer._mt_overrides == Overrides()


def test_an_evaluation_within_a_run_keeps_what_the_run_began_with(trained):
    kind = type("Own", (Trainer,), {"_save": print})
    trainer = trained({"kind": kind}, max_steps=1, eval_strategy="epoch", save_strategy="no")
    assert trainer._mt_overrides.write_checkpoints
    assert trainer._mt_overrides.reasons == []
