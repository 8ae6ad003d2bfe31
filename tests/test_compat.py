"""Compat records in one place which methods of the Trainer are overridden, and what follows."""

import dataclasses

import pytest

from mps_trainer import Trainer
from mps_trainer.compat import BACKGROUND_SAVES, Compat

FLAGS = [each.name for each in dataclasses.fields(Compat) if each.name != "off"]


def true_in(compat: Compat) -> set[str]:
    return {name for name in FLAGS if getattr(compat, name)}


def bare(kind: type = Trainer) -> Trainer:
    return object.__new__(kind)


EXPECTED = {
    "create_optimizer": {"makes_optimizer_or_loss"},
    "create_optimizer_and_scheduler": {"makes_optimizer_or_loss"},
    "compute_loss": {"makes_optimizer_or_loss", "computes_loss", "computes_updates"},
    "training_step": {"makes_optimizer_or_loss", "steps_see_batches", "keeps_losses", "computes_updates"},
    "get_train_dataloader": {"gives_train_loader"},
    "get_eval_dataloader": {"gives_eval_loader"},
    "get_batch_samples": {"loads_batches", "computes_updates"},
    "_prepare_inputs": {"steps_see_batches", "evaluation_sees_batches"},
    "_prepare_input": {"steps_see_batches", "evaluation_sees_batches"},
    "prediction_step": {"evaluation_sees_batches", "predicts"},
    "_get_num_items_in_batch": {"counts_items"},
    "_track_num_input_tokens": {"counts_tokens"},
    "split_batch": {"splits_batches"},
    "_clip_grad_norm": {"clips"},
    "_get_grad_norm": {"clips"},
    "autocast_smart_context_manager": {"autocasts"},
    "_maybe_log_save_evaluate": {"logs_each_step"},
    "_save_checkpoint": {"writes_checkpoints"},
    "save_model": {"writes_checkpoints"},
    "_save": {"writes_checkpoints"},
    "_save_optimizer_and_scheduler": {"writes_checkpoints"},
    "_save_scaler": {"writes_checkpoints"},
    "_save_rng_state": {"writes_checkpoints"},
    "_rotate_checkpoints": {"writes_checkpoints"},
    "_push_from_checkpoint": {"uploads_checkpoints"},
    "_load_rng_state": {"restores_rng"},
    "log": set(),
}


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_an_override_of_a_class_an_instance_or_a_patch_has_its_effects_and_no_others(monkeypatch, name, expected):
    subclass, instance = bare(type("Own", (Trainer,), {name: print})), bare()
    setattr(instance, name, print)
    assert true_in(Compat.of(subclass)) == true_in(Compat.of(instance)) == expected
    monkeypatch.setattr(Trainer, name, print)
    assert true_in(Compat.of(bare())) == expected


def test_every_flag_has_a_method_that_sets_it():
    assert set(FLAGS) == set().union(*EXPECTED.values())
    assert Compat.of(bare()) == Compat()


def test_the_sentences_name_each_disabled_fast_path_and_the_methods_to_blame():
    kind = type("Own", (Trainer,), dict.fromkeys(("_clip_grad_norm", "_get_grad_norm", "_save", "log")))
    clipping = "clipping within the optimizer's step, because _clip_grad_norm and _get_grad_norm is overridden"
    compat = Compat.of(bare(kind))
    assert compat.off == ("saving while training goes on, because _save is overridden", clipping)
    assert compat.without(BACKGROUND_SAVES) == dataclasses.replace(compat, off=(clipping,))


def predicted(model, inputs, prediction_loss_only, ignore_keys=None):
    return model(**inputs)["loss"].detach(), None, None


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_a_method_patched_on_the_instance_before_an_evaluation_alone_counts(make_trainer, mps, call):
    trainer = make_trainer()
    trainer.prediction_step = predicted  # transformers' Trainer moves batches for it, too
    getattr(trainer, call)(trainer.eval_dataset)
    del trainer.prediction_step
    getattr(trainer, call)(trainer.eval_dataset)
    assert trainer._mt_compat == Compat()


def test_an_evaluation_within_a_run_keeps_what_the_run_began_with(trained):
    kind = type("Own", (Trainer,), {"_save": print})
    trainer = trained({"kind": kind}, max_steps=1, eval_strategy="epoch", save_strategy="no")
    assert trainer._mt_compat.writes_checkpoints
    assert trainer._mt_compat.off == ()
