"""A Trainer that has only what checkpoints need of one."""

import os
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers.trainer_callback import CallbackHandler

from mps_trainer.callbacks.events import Events
from mps_trainer.checkpoints.rng import rng_state
from mps_trainer.distributed import Processes
from mps_trainer.evaluation.metrics import SavableLogs
from mps_trainer.utils.overrides import Overrides


class FakeTrainer:
    """Records the calls of its methods, with the last parts of the paths that they get."""

    def __init__(self, args: Any, model: nn.Module | None = None, optimizer: Any = None, schedule: Any = None) -> None:
        self.args, self.model = args, nn.Linear(2, 2) if model is None else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1) if optimizer is None else optimizer
        self.lr_scheduler = schedule or torch.optim.lr_scheduler.ConstantLR(self.optimizer)
        self.processing_class = self.data_collator = None
        self._mt_overrides, self._mt_precision = Overrides(), SimpleNamespace(scaler=None)
        self._mt_processes, self._mt_savable_logs = Processes(), SavableLogs()
        self._mt_run: Any = None
        self._mt_supervised = None
        self._mt_events = Events(self)
        self._mt_events.handler = CallbackHandler([], self.model, None, self.optimizer, self.lr_scheduler)
        self._mt_events.note = lambda kind, text="": self.notes.append((kind, text))  # type: ignore[method-assign]
        self.notes: list[tuple[str, str]] = []
        self.called: list[tuple[Any, ...]] = []

    @property
    def state(self) -> Any:
        return self._mt_events.state

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("save_", "_save_", "_load_", "_rotate_", "_push_")):
            raise AttributeError(name)

        def record(*args: Any, **kwargs: Any) -> None:
            paths = [os.path.basename(each) if isinstance(each, str) else each for each in args]
            self.called.append((name, *paths, *kwargs))

        return record


class FakeRun:
    """Stands for a run under way: a position, and what loading draws."""

    def __init__(self, model: Any = None) -> None:
        self.model, self.trial = model, None
        self.batch_source = SimpleNamespace(state_dict=lambda: {**rng_state(), "order_seed": 7})
        self.run_state = SimpleNamespace(state_dict=lambda: {"epoch": 1})
