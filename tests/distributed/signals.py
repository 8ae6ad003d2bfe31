"""A signal that reaches only the second process, and what all of them make of it."""

import functools
import os
import signal
from typing import Any

import torch
from transformers import TrainerCallback, default_data_collator

from mps_trainer import Trainer
from mps_trainer.distributed.sharded import full_state_dict
from tests.conftest import Classifier, examples, logged
from tests.distributed.scenarios import SCENARIOS, arguments, scenario
from tests.distributed.sharding import make, sentences

STEPS = {"max_steps": 9, "eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 2}


class SignalToOne(TrainerCallback):
    """SIGTERM at the nth time of an event. 0 for never."""

    def __init__(self, event: str, number: int) -> None:
        self.times, self.number = 0, number
        setattr(self, event, self._count)

    def _count(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.times += 1
        if self.times == self.number and args.process_index == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def exit_status(trainer: Trainer) -> Any:
    """Returns the status with which a signal ends a run, or None."""
    try:
        trainer.train()
    except SystemExit as end:
        return end.code
    return None


def replica(folder: str, callback: TrainerCallback) -> Trainer:
    torch.manual_seed(0)
    return Trainer(
        Classifier(dropout=0.2),
        arguments(folder, **STEPS),
        train_dataset=examples(43),
        eval_dataset=examples(43),
        callbacks=[callback],
    )


def shards(folder: str, callback: TrainerCallback) -> Trainer:
    config, rows = {"state_dict_type": "SHARDED_STATE_DICT"}, sentences(43, labels=False)
    return make(folder, config, rows=rows, eval_dataset=rows, callbacks=[callback], **STEPS)


def stopped(folder: str, kind: Any, event: str, number: int) -> dict[str, Any]:
    """A run that is left alone; one with the signal; and the one that goes on from where that has ended."""
    whole = kind(f"{folder}-whole", SignalToOne(event, 0))
    whole.train()
    callback = SignalToOne(event, number)
    first = kind(folder, callback)
    ended = exit_status(first)
    again = kind(folder, SignalToOne(event, 0))
    again.train(resume_from_checkpoint=True)
    return {
        "ended": ended,
        "step": first.state.global_step,
        "times": callback.times,
        "evaluations": len(logged(first, "eval_loss")),
        "all_evaluations": (logged(whole, "eval_loss"), logged(again, "eval_loss")),
        "weights": (full_state_dict(whole.model), full_state_dict(again.model)),
    }


WHERE: dict[str, tuple[Any, str, int]] = {
    "a_signal_in_an_evaluation": (replica, "on_prediction_step", 2),
    "a_signal_in_an_evaluation_of_shards": (shards, "on_prediction_step", 2),
    "a_signal_in_a_step": (replica, "on_pre_optimizer_step", 3),
    "a_signal_in_the_last_step": (replica, "on_step_end", 9),
}
for name, where in WHERE.items():
    SCENARIOS[name] = functools.partial(lambda folder, where: stopped(folder, *where), where=where)


@scenario
def a_signal_after_the_last_step(folder: str) -> dict[str, Any]:
    return {"ended": exit_status(replica(folder, SignalToOne("on_train_end", 1)))}


@scenario
def loading_draws_in_one(folder: str) -> dict[str, Any]:
    """Of the two processes only the first draws when it loads."""
    torch.manual_seed(0)
    args = arguments(folder, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=2, max_steps=3)

    def collate(rows: list[Any]) -> dict[str, Any]:
        if args.process_index == 0:
            torch.rand(())
        return default_data_collator(rows)

    callbacks = [SignalToOne("on_step_begin", 1)]
    trainer = Trainer(Classifier(), args, collate, examples(16), examples(16), callbacks=callbacks)
    return {"ended": exit_status(trainer), "step": trainer.state.global_step}
