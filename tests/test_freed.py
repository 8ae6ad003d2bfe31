"""`del trainer` frees the model, the optimizer and the Trainer at once, without the garbage collector."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mps_trainer import Trainer
from mps_trainer.errors import MisconfigurationException
from tests.conftest import accuracy, callback, examples
from tests.tiny import tiny

pytestmark = pytest.mark.every_device


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def made_only(trainer: Trainer) -> None:
    pass


def trained(trainer: Trainer) -> None:
    trainer.train()


def trained_twice(trainer: Trainer) -> None:
    trainer.train()
    trainer.train()


def evaluated(trainer: Trainer) -> None:
    trainer.evaluate()
    trainer.predict(examples(8))


def trained_and_evaluated(trainer: Trainer) -> None:
    trainer.train()
    trainer.evaluate()
    trainer.save_model()


def failed(trainer: Trainer) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("a callback fails")

    trainer.add_callback(callback(on_step_end=fail))
    with pytest.raises(RuntimeError, match="a callback fails"):
        trainer.train()


def out_of_memory(trainer: Trainer) -> None:
    def fail(**_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    trainer.add_callback(callback(on_step_end=fail))
    with pytest.raises(torch.OutOfMemoryError):
        trainer.train()


def refused(trainer: Trainer) -> None:
    with pytest.raises(MisconfigurationException):
        trainer.train(resume_from_checkpoint="missing")


def resumed(trainer: Trainer) -> None:
    trainer.train()
    trainer.train(resume_from_checkpoint=True)


def asked_for_accelerator(trainer: Trainer) -> None:
    trainer.accelerator.unwrap_model(trainer.model)
    _ = trainer.gather_function
    trainer.train()


def saved_by_hand(trainer: Trainer) -> None:
    trainer.create_optimizer_and_scheduler(10)
    trainer._save_checkpoint(trainer.model, None)


SITUATIONS = [
    made_only, trained, trained_twice, evaluated, trained_and_evaluated, failed, out_of_memory, refused, resumed,
    asked_for_accelerator, saved_by_hand,
]  # fmt: skip


def assert_freed(trainer: Trainer, situation: Any) -> None:
    situation(trainer)
    parts = {"Trainer": trainer, "model": trainer.model, "optimizer": trainer.optimizer}
    watched = {name: weakref.ref(part) for name, part in parts.items() if part is not None}
    del parts, trainer
    assert [name for name, reference in watched.items() if reference() is not None] == []


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__)
def test_frees_a_deleted_trainer(make_trainer, situation):
    made = [make_trainer(max_steps=4, save_strategy="steps", save_steps=2, report=True)]
    assert_freed(made.pop(), situation)


@pytest.mark.parametrize(
    "settings",
    [
        {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True},
        {"auto_find_batch_size": True, "gradient_accumulation_steps": 2},
        {"stop_on_nan": True, "save_async": False},
        {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
        {"remove_unused_columns": False, "report": False, "max_grad_norm": 0.0},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_frees_a_trainer_with(make_trainer, settings):
    made = [make_trainer({"compute_metrics": accuracy}, max_steps=4, save_strategy="steps", save_steps=2, **settings)]
    assert_freed(made.pop(), trained_and_evaluated)


def test_frees_a_trainer_with_model_init(make_trainer, make_model):
    assert_freed([make_trainer({"model_init": lambda: make_model()}, max_steps=2)].pop(), trained_twice)


def test_frees_a_language_model(make_trainer):
    rows = [{"input_ids": [5 + i % 7] * 8, "labels": [5 + i % 7] * 8} for i in range(16)]
    trainer = {"model": tiny("LlamaForCausalLM"), "train_dataset": rows, "eval_dataset": rows[:4]}
    made = [make_trainer(trainer, max_steps=2, chunked_attention=True, gradient_checkpointing=True)]
    del trainer
    assert_freed(made.pop(), trained)


def test_frees_a_subclass(make_trainer):
    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

        def training_step(self, *given):
            return super().training_step(*given)

        def _maybe_log_save_evaluate(self, *given, **more):
            return super()._maybe_log_save_evaluate(*given, **more)

    assert_freed([make_trainer({"kind": Own}, max_steps=2)].pop(), trained_and_evaluated)
