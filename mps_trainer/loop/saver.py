"""Saves the checkpoints of a run: collects the state, writes it, calls on_save, and removes older ones."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.trainer_callback import TrainerState

from ..callbacks.events import Events
from ..checkpoints import folders, manifest, model_files, run_files
from ..checkpoints.manager import CheckpointManager, Writer
from ..checkpoints.rng import file_of, read_rng
from ..checkpoints.run_files import OPTIMIZER, SCALER, SCHEDULER
from ..checkpoints.sharded_writer import each_writes, gather, sharded_writer
from ..checkpoints.snapshot import WRITERS, background_writer, copy_of_state, may_write_in_background
from ..checkpoints.storage.weights import WEIGHTS
from ..distributed import Processes
from ..distributed.full_state import full_state_dict
from ..distributed.sharded import is_sharded
from ..random_state import rng_state, set_rng
from ..training_args import TrainingArguments
from .hooks import Checkpointing, SavingHooks
from .run import TrainingRun
from .trainer_state import stateful_callbacks

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contents:
    """The objects that a checkpoint is made of.

    Args:
        processing_class: the tokenizer or processor that goes with the model, or None.
        scaler: of the gradients; None without one.
        run: the one that is under way; None for a checkpoint that is saved by hand.
    """

    args: TrainingArguments
    model: nn.Module
    processing_class: Any
    optimizer: Any
    lr_scheduler: Any
    scaler: Any
    run: TrainingRun | None


class CheckpointSaver:
    """Saves checkpoints and loads their files; run_files.py and model_files.py write and read them.

    Args:
        contents: returns what a checkpoint is made of, as it is when it is called.
        write_state: `(state, path)`: writes a state as a JSON file.

    Attributes:
        earlier: the checkpoints in the output folder that another run left there.
    """

    def __init__(
        self,
        contents: Callable[[], Contents],
        events: Events,
        processes: Processes,
        write_state: Callable[[TrainerState, str], None],
    ) -> None:
        self.earlier: set[str] = set()
        self._contents, self._events, self._processes = contents, events, processes
        self._manager = CheckpointManager(write_state)
        self._rng_of_all: list[dict[str, Any]] = []  # of the processes, when the last checkpoint was due
        self._gathered: Mapping[str, Any] = {}  # files of a sharded model, while a checkpoint is written

    def note_earlier(self, run_dir: str, resumed_at: int | None) -> None:
        """Records the checkpoints in `run_dir` of earlier runs. `resumed_at` is the step of a resumed run."""
        # later steps than those of the checkpoint are another run's, or of a past that this one leaves
        found = folders.find_checkpoints(run_dir)
        self.earlier = {folder for folder in found if resumed_at is None or folders.step_of(folder) > resumed_at}

    # Saving

    def save(self, run_dir: str, hooks: SavingHooks) -> None:
        """Writes `checkpoint-<step>` into `run_dir`. All processes must call it."""
        self._note_rng()
        contents = self._contents()
        args, model = contents.args, contents.model
        together = each_writes(model, args)
        if is_sharded(model) and not together:
            optimizer = None if args.save_only_model else contents.optimizer
            self._gathered = gather(model, optimizer, keep=args.should_save)
        try:
            if together or args.should_save:
                self._save_files(run_dir, contents, hooks, together)
        finally:
            self._gathered = {}

    def _save_files(self, run_dir: str, contents: Contents, hooks: SavingHooks, together: bool) -> None:
        """Writes the files of a checkpoint. All processes must call it if they write it `together`."""
        self.wait()
        args, model, processing_class = contents.args, contents.model, contents.processing_class
        state = self._events.state
        best_before, folder = state.best_model_checkpoint, folders.checkpoint_folder(run_dir, state.global_step)
        if args.should_save:
            run_files.note_best(state, folder, self.earlier)
            state.stateful_callbacks = stateful_callbacks(self._events)
        writer = Writer(functools.partial(_write, args, hooks))
        rotate = functools.partial(hooks.rotate_checkpoints, output_dir=run_dir)
        parts = {} if args.save_only_model else self.parts()
        if together:
            rest = (hooks.save_scaler, hooks.save_rng_state)
            writer = sharded_writer(model, processing_class, args, parts, rest, self._processes)
        elif self._may_write_in_background(contents):
            rng = self._rng_files() if parts else {}
            writer = background_writer(model, processing_class, args, {**parts, **rng})
            state = copy_of_state(state)
            rotate = functools.partial(rotate, state=state)
        on_unsaved = functools.partial(self._take_back_best, folder, best_before)
        self._manager.save(run_dir, state, writer, rotate, on_unsaved)
        if args.push_to_hub and not together and self.unsaved is None:
            hooks.push_from_checkpoint(folder)

    def _may_write_in_background(self, contents: Contents) -> bool:
        if contents.run is None or contents.args.fsdp:  # saved by hand; or gathered from all processes
            return False
        return may_write_in_background(
            contents.args,
            contents.model,
            contents.optimizer,
            writers_overridden=contents.run.trainer._mt_overrides.has(*WRITERS),
            has_save_listener=self._events.has_listener("on_save"),
        )

    def _take_back_best(self, folder: str, best_before: str | None) -> None:
        """Clears the best checkpoint if it is `folder`, which was not saved, and records that in the report."""
        state = self._events.state
        if state.best_model_checkpoint == folder and not os.path.isdir(folder):
            state.best_model_checkpoint = best_before
        self._events.note("fault", self.unsaved or "")

    @property
    def unsaved(self) -> str | None:
        """Returns why the last checkpoint was not saved, or None."""
        return self._manager.unsaved

    def wait(self) -> None:
        """Waits for the checkpoint in progress and raises its error."""
        self._manager.background.wait()

    def require_saved(self) -> None:
        """Raises CheckpointError if the last checkpoint of the run could not be saved."""
        self._manager.require_saved()

    def tell(self, run_dir: str) -> None:
        """Calls on_save, unless the save failed. A callback may add or change files of the checkpoint."""
        events = self._events
        if self.unsaved is not None:
            events.control.should_save = False
            return
        events.note("checkpoint")
        events.fire("on_save")
        if not self._contents().args.should_save or not events.has_listener("on_save"):
            return
        step = events.state.global_step
        folder = folders.checkpoint_folder(run_dir, step)
        try:
            manifest.renew(folder, step)
        except OSError as error:
            logger.error(
                "%s was changed, and its %s could not be: %s.", folder, manifest.NAME, error.strerror or error
            )

    # A run

    def checkpointing(
        self,
        run_dir: str,
        save: Callable[[], None],
        load: Sequence[Callable[[str], None]],
        load_rng: Callable[[str], None],
    ) -> Checkpointing:
        """Returns the hooks for a run into `run_dir`.

        Args:
            save: the Trainer's method that saves a checkpoint.
            load: those that load a part of one each.
            load_rng: the one that sets the generators.
        """

        def save_and_tell() -> None:
            save()
            self.tell(run_dir)

        def save_again() -> None:
            self.wait()
            if self._processes.all_reduce_max([self.unsaved is not None])[0]:  # there may be room again
                save()
                self.wait()
                self.tell(run_dir)

        def folder() -> str:
            return folders.checkpoint_folder(run_dir, self._events.state.global_step)

        def load_all(checkpoint: str) -> None:
            for each in load:
                each(checkpoint)

        return Checkpointing(
            save=save_and_tell,
            save_again=save_again,
            poll=self._manager.background.poll,
            wait=self.wait,
            folder=folder,
            is_saved=lambda: self._processes.first_does(
                lambda: os.path.isdir(folder()) and folder() not in self.earlier
            ),
            newest=lambda: next(
                (f for f in reversed(folders.find_checkpoints(run_dir)) if f not in self.earlier), None
            ),
            unsaved=lambda: self.unsaved,
            load=load_all,
            load_rng=load_rng,
        )

    # The files of a checkpoint

    def full_weights(self) -> dict[str, Any] | None:
        """Returns the full weights of a sharded model, else None. All processes must call it."""
        weights, contents = self._gathered.get(WEIGHTS), self._contents()
        if weights is None and is_sharded(contents.model):
            return full_state_dict(contents.model, keep=contents.args.should_save)
        return weights

    def parts(self, *names: str) -> dict[str, Any]:
        """Returns optimizer, schedule and scaler by the names of their files, or those of them in `names`."""
        contents = self._contents()
        parts = {OPTIMIZER: self._gathered.get(OPTIMIZER, contents.optimizer), SCHEDULER: contents.lr_scheduler}
        if contents.scaler is not None:
            parts[SCALER] = contents.scaler
        return {name: part for name, part in parts.items() if not names or name in names}

    def save_parts(self, folder: str, *names: str) -> None:
        """Writes those of the parts of these names that there are."""
        run_files.save_parts(self.parts(*names), folder)

    def load_parts(self, folder: str | None, *names: str) -> None:
        """Loads those of the parts of these names that there are; nothing without a folder."""
        if folder is not None:
            run_files.restore_parts(self.parts(*names), folder)

    def _note_rng(self) -> None:
        """Exchanges the states of the generators before the first process writes their files."""
        if self._processes.is_distributed and not self._contents().args.save_only_model:
            self._rng_of_all = self._processes.gather(self._rng_and_position())

    def save_rng(self, folder: str) -> None:
        """Writes the states of the generators of all processes, one file for each."""
        run_files.save_parts(self._rng_files(), folder)

    def load_rng(self, folder: str | None) -> None:
        """Restores the generators if the checkpoint has their states."""
        processes = self._processes
        state = None if folder is None else read_rng(folder, processes.rank, processes.size)
        if state is not None:
            set_rng(state)

    def _rng_files(self) -> dict[str, dict[str, Any]]:
        rng_of_all = self._rng_of_all if self._processes.is_distributed else [self._rng_and_position()]
        return {file_of(rank, self._processes.size): state for rank, state in enumerate(rng_of_all)}

    def _rng_and_position(self) -> dict[str, Any]:
        """Returns the states of this process's generators and of its loop."""
        run = self._contents().run
        position = {} if run is None else {**run.data_rng.state_dict(), run_files.LOOP: run.run_state.state_dict()}
        return {**rng_state(), **position}

    def load_best(self) -> None:
        """Loads the weights of the best checkpoint. Warns if the best evaluation has no checkpoint."""
        state = self._events.state
        state.best_model_checkpoint = self._processes.first_does(lambda: state.best_model_checkpoint)
        if state.best_model_checkpoint is not None:
            model_files.load_weights(self._contents().model, state.best_model_checkpoint)
            return
        logger.warning(
            "load_best_model_at_end: the best evaluation, at step %s, has no checkpoint, so the last weights are "
            "kept. Give save_steps the value of eval_steps, or use save_strategy='best'.",
            state.best_global_step,
        )

    # Older checkpoints

    def rotate(self, run_dir: str, state: TrainerState) -> None:
        """Removes an overwritten run's checkpoints and those beyond the limit; the one of `state` is the newest."""
        contents = self._contents()
        newest = folders.find_checkpoints(run_dir)[-1:]
        if contents.run is not None:
            newest = [folders.checkpoint_folder(run_dir, state.global_step)]
        self.earlier.difference_update(newest)
        if contents.args.overwrite_output_dir:
            for old in self.earlier:
                folders.remove(old)
            self.earlier.clear()
        folders.rotate(run_dir, contents.args.save_total_limit, {*newest, state.best_model_checkpoint}, self.earlier)

    def keep_only_best(self, run_dir: str) -> None:
        """Removes the last checkpoint after a run that was to keep one, if the best is another one in `run_dir`."""
        args, best = self._contents().args, self._events.state.best_model_checkpoint
        is_own = best is not None and os.path.realpath(os.path.dirname(best)) == os.path.realpath(run_dir)
        if args.should_save and is_own and args.save_total_limit == 1:
            folders.rotate(run_dir, 1, {best}, self.earlier)


def _write(args: TrainingArguments, hooks: SavingHooks, folder: str) -> None:
    """Writes a checkpoint's files by the methods that a subclass may override."""
    hooks.save_model(folder, _internal_call=True)
    os.makedirs(folder, exist_ok=True)  # an override may remove what it does not know
    if not args.save_only_model:
        hooks.save_optimizer_and_scheduler(folder)
        hooks.save_scaler(folder)
        hooks.save_rng_state(folder)
