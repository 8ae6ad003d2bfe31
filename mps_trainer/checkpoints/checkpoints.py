"""Saves, finds, loads and removes the checkpoints of a run."""

from __future__ import annotations

import copy
import functools
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from transformers.trainer_callback import TrainerState

from ..distributed import Processes
from ..distributed.sharded import full_state_dict, is_sharded, whole_state
from ..errors import AnotherProcessFailedError, CheckpointError
from . import folders, loading, manifest
from .files import why_not_written
from .loading import LOOP_STATE, OPTIMIZER, SCALER, SCHEDULER
from .manifest import STATE, WEIGHTS
from .rng import rng_file, rng_state
from .surface import SavingTrainer
from .writers import Writer, write_states, writer_for, writes_shards

logger = logging.getLogger(__name__)

_THREAD = "mps_trainer checkpoint"


def wait_for_background() -> None:
    """Waits for all checkpoints that this process writes in the background. An interrupted run leaves one behind."""
    for thread in threading.enumerate():
        if thread.name == _THREAD:
            thread.join()


class Checkpoints:
    """Owns the checkpoints of one run.

    The files of a checkpoint go to an unfinished folder, which then takes its name: a checkpoint that exists is
    complete. Training continues if one cannot be written.

    A checkpoint that is written at once is complete before on_save is called, and on_checkpoint_complete follows. One
    that is written in the background is not complete at on_save. A later step finds that it is, and calls
    on_checkpoint_complete.

    Args:
        run_dir: the folder of the run. It stays the same if the working folder changes.

    Attributes:
        stale: the checkpoints in it that this run does not continue: those of other runs, and of later steps than
            the one that was resumed.
        unsaved: a sentence that says why the disk did not take the last checkpoint; None if it did.
    """

    def __init__(self, trainer: SavingTrainer, run_dir: str) -> None:
        self.run_dir = os.path.abspath(run_dir)
        self.stale: set[str] = set()
        self._trainer = trainer
        self._given = run_dir
        try:
            self._working_dir = os.getcwd()
        except FileNotFoundError:  # it was deleted, and an absolute `run_dir` does not need it
            self._working_dir = ""
        self._run_id = None if trainer._mt_supervised is None else trainer._mt_supervised.run_id
        self.unsaved: str | None = None
        self._last_save: int | None = None  # the number of the last save by this object
        self._writing: Future[Any] | None = None  # the checkpoint in the background
        self._complete: str | None = None  # a checkpoint on disk that the callbacks have not heard of
        # While a checkpoint is written: the generators of all processes, and the whole states of a sharded model, by
        # the names of their files.
        self._gathered: dict[str, Any] = {}

    def find_stale(self, resume_from: str | None) -> None:
        """Finds the checkpoints that a run does not continue if it resumes `resume_from`, or starts anew for None."""
        given = [] if resume_from is None else [os.path.abspath(resume_from), os.path.realpath(resume_from)]
        is_own = os.path.realpath(self.run_dir) in (os.path.realpath(os.path.dirname(each)) for each in given)
        resumed_at = self._trainer.state.global_step if is_own else -1
        found = folders.find_checkpoints(self.run_dir)
        self.stale = {folder for folder in found if folders.step_of(folder) > resumed_at}

    # Saving

    def save(self) -> None:
        """Saves the checkpoint of the current step and calls on_save. All processes must call it."""
        self._trainer._save_checkpoint(self._trainer._mt_run.model, self._trainer._mt_run.trial)
        self.fire_on_save()

    def save_again(self) -> None:
        """Saves the checkpoint once more if the disk did not take the last one: there may be room again."""
        self.wait()
        if self._trainer._mt_processes.all_reduce_max([self.unsaved is not None])[0]:
            self._trainer._save_checkpoint(self._trainer._mt_run.model, self._trainer._mt_run.trial)
            self.wait()
            self.fire_on_save()
        self._fire_complete()  # an override's save may not have called on_save

    def poll(self) -> None:
        """Notes that the checkpoint in the background is written; raises its error. Does not wait for it."""
        if self._writing is not None and self._writing.done():
            self.wait()
        self._fire_complete()

    def wait(self) -> None:
        """Waits for the checkpoint in the background and raises its error, once."""
        writing = self._writing
        is_running = any(thread.name == _THREAD for thread in threading.enumerate())  # False in a forked process
        if writing is not None and is_running:
            wait([writing])  # a signal may interrupt it, so the checkpoint is forgotten afterwards
        self._writing = None
        if writing is not None and writing.done():
            self._note_result(*writing.result())
            self._fire_complete()

    def require_saved(self) -> None:
        """Raises CheckpointError if the last checkpoint of the run could not be saved."""
        if self.unsaved is not None:
            raise CheckpointError(
                f"Training has ended, but {self.unsaved} Make room or give permission, then save the model that is "
                "in memory with save_model(), or resume from the last checkpoint."
            )

    def fire_on_save(self) -> None:
        """Calls on_save, unless the save failed. A callback may add or change files of the checkpoint."""
        trainer, events = self._trainer, self._trainer._mt_events
        if self.unsaved is not None:
            trainer.control.should_save = False
            return
        events.note("checkpoint")
        events.fire("on_save")
        if trainer.args.should_save and events.has_listener("on_save"):
            folder = folders.checkpoint_folder(self.run_dir, trainer.state.global_step)
            try:
                manifest.renew(folder, trainer.state.global_step)
            except OSError as error:
                logger.error(
                    "%s was changed, and its %s could not be: %s.", folder, manifest.NAME, error.strerror or error
                )
        self._fire_complete()

    def _fire_complete(self) -> None:
        """Calls on_checkpoint_complete for a checkpoint that is on disk, once."""
        folder, self._complete = self._complete, None
        if folder is not None and self._trainer.args.should_save:
            self._trainer._mt_events.fire("on_checkpoint_complete", checkpoint=self._shown(folder))

    def write(self) -> None:
        """Writes the checkpoint of the current step, in the background where that is safe. All processes must call it.

        If the disk does not take it, training continues, and `unsaved` says why.
        """
        self.wait()
        trainer, args, state = self._trainer, self._trainer.args, self._trainer.state
        folder, best_before = folders.checkpoint_folder(self.run_dir, state.global_step), state.best_model_checkpoint
        positions = None
        if trainer._mt_run is not None and not args.save_only_model:
            positions = trainer._mt_processes.gather(trainer._mt_run.position.state_dict()["loop"])
        self._gathered = self._gather()
        try:
            if args.should_save:
                self._note_best()
                state.stateful_callbacks = trainer._mt_events.stateful_callbacks()
            elif not writes_shards(trainer.model, args):
                return
            writer = writer_for(trainer, {} if args.save_only_model else {**self.states(), **self._rng_files()})
            rotate: Callable[[], None]
            if writer.in_background:
                # the Trainer may have begun another run when the thread ends, so the thread reads copies only
                state = copy.copy(state)
                state.log_history = list(state.log_history)
                state.stateful_callbacks = copy.deepcopy(state.stateful_callbacks)
                kept = {folder, self._absolute(state.best_model_checkpoint)}
                rotate = functools.partial(self._remove_old, kept, args.save_total_limit, args.overwrite_output_dir)
                self.unsaved = None  # an earlier failure does not keep this save's on_save
            else:
                rotate = functools.partial(trainer._rotate_checkpoints, output_dir=self.run_dir)
            work = functools.partial(self._write_and_commit, writer, folder, state, positions, best_before, rotate)
            if writer.in_background:
                self._writing = _in_thread(work)
            elif (result := work()) is not None:
                self._note_result(*result)
        finally:
            self._gathered = {}

    def _gather(self) -> dict[str, Any]:
        trainer, args, processes = self._trainer, self._trainer.args, self._trainer._mt_processes
        gathered: dict[str, Any] = {}
        if processes.is_distributed and not args.save_only_model:
            gathered["rng"] = processes.gather(self._rng())
        if is_sharded(trainer.model) and not writes_shards(trainer.model, args):
            gathered[WEIGHTS] = full_state_dict(trainer.model, keep=args.should_save)
            if not args.save_only_model:
                gathered[OPTIMIZER] = whole_state(trainer.optimizer, keep=args.should_save)
        return gathered

    def _write_and_commit(
        self,
        writer: Writer,
        folder: str,
        state: TrainerState,
        positions: list[dict[str, Any]] | None,
        best_before: str | None,
        rotate: Callable[[], None],
    ) -> tuple[str, str | None, str | None] | None:
        """Writes a checkpoint, then removes old ones. What one of the processes cannot write ends it for all.

        Returns:
            In the first of the processes that write, what `_note_result` takes; None in the others.
        """
        alone = Processes()  # a thread may not exchange anything with the other processes
        processes = alone if writer.write_shards is None else self._trainer._mt_processes
        unfinished = os.path.join(self.run_dir, f"{folders.UNFINISHED}{state.global_step}")

        def begin() -> None:
            shutil.rmtree(unfinished, ignore_errors=True)
            os.makedirs(unfinished)

        def finish() -> None:
            writer.write_files(unfinished)
            self._trainer._mt_savable_logs.save(state, os.path.join(unfinished, STATE))
            if positions:
                with open(os.path.join(unfinished, LOOP_STATE), "w", encoding="utf-8") as file:
                    json.dump({"processes": positions}, file, indent=2)
            self._last_save = folders.commit(unfinished, folder, state.global_step, self._run_id, self._last_save)

        error = None
        try:
            processes.first_does(begin)
            if writer.write_shards is not None:
                processes.all_do(functools.partial(writer.write_shards, unfinished))
            processes.first_does(finish)
        except Exception as failure:  # all processes come here after the error of one
            is_own = not isinstance(failure, AnotherProcessFailedError)
            reasons = processes.gather(why_not_written(failure, unfinished) if is_own else "")
            if None in reasons:
                raise
            error = next(filter(None, reasons))
        finally:
            if processes.is_first:
                shutil.rmtree(unfinished, ignore_errors=True)
        if not processes.is_first:
            return None
        if error is None:
            rotate()
        return folder, best_before, error

    def _note_result(self, folder: str, best_before: str | None, error: str | None) -> None:
        """Uploads a checkpoint that was written. Logs the error of one that was not; it is not the best then."""
        trainer, state = self._trainer, self._trainer.state
        if error is None:
            self.unsaved, self._complete = None, folder
            if trainer.args.push_to_hub and not writes_shards(trainer.model, trainer.args):
                trainer._push_from_checkpoint(folder)
            return
        newest = self.newest()
        left = "There is none." if newest is None else f"The last one is {newest}."
        self.unsaved = f"{folder} could not be saved: {error}. {left}"
        logger.error("%s Training does not stop for it: free some disk space or allow writing.", self.unsaved)
        if self._absolute(state.best_model_checkpoint) == folder and not os.path.isdir(folder):
            state.best_model_checkpoint = best_before
        trainer._mt_events.note("fault", self.unsaved)

    def _note_best(self) -> None:
        """Records the checkpoint of the best weights, which may be the one that is written next."""
        state = self._trainer.state
        best = folders.checkpoint_folder(self.run_dir, state.best_global_step or 0)
        is_there = os.path.isdir(best) and best not in self.stale
        if state.best_global_step and (state.best_global_step == state.global_step or is_there):
            state.best_model_checkpoint = self._shown(best)

    # The states in a checkpoint

    def full_weights(self) -> dict[str, Any] | None:
        """Returns the full weights of a sharded model, else None. All processes must call it."""
        model = self._trainer.model
        if WEIGHTS in self._gathered or not is_sharded(model):
            return self._gathered.get(WEIGHTS)
        return full_state_dict(model, keep=self._trainer.args.should_save)

    def states(self, *names: str) -> dict[str, Any]:
        """Returns optimizer, schedule and scaler by the names of their files, or those of them in `names`."""
        trainer, scaler = self._trainer, self._trainer._mt_precision.scaler
        states = {OPTIMIZER: self._gathered.get(OPTIMIZER, trainer.optimizer), SCHEDULER: trainer.lr_scheduler}
        if scaler is not None:
            states[SCALER] = scaler
        return {name: state for name, state in states.items() if not names or name in names}

    def save_states(self, folder: str, *names: str) -> None:
        """Writes the named states, skipping absent ones."""
        write_states(self.states(*names), folder)

    def load_states(self, folder: str | None, *names: str) -> None:
        """Loads the named states, skipping absent ones; nothing without a folder."""
        if folder is not None:
            loading.load_states(self.states(*names), folder)

    def save_rng(self, folder: str) -> None:
        """Writes the random states of all processes, one file for each."""
        write_states(self._rng_files(), folder)

    def _rng_files(self) -> dict[str, dict[str, Any]]:
        processes = self._trainer._mt_processes
        of_all = enumerate(self._gathered["rng"]) if "rng" in self._gathered else [(processes.rank, self._rng())]
        return {rng_file(rank, processes.size): state for rank, state in of_all}

    def _rng(self) -> dict[str, Any]:
        """Returns the states of this process's generators, and those that its loader drew from."""
        run = self._trainer._mt_run
        return rng_state() if run is None else run.position.rng_state()

    # Loading

    def load_best(self) -> None:
        """Loads the weights of the best checkpoint. Warns if the best evaluation has no checkpoint."""
        state, processes = self._trainer.state, self._trainer._mt_processes
        best = state.best_model_checkpoint = processes.first_does(lambda: state.best_model_checkpoint)
        if best is None and state.best_global_step is None:
            logger.warning("load_best_model_at_end: no evaluation gave a number, so the last weights are kept.")
        elif best is None:
            logger.warning(
                "load_best_model_at_end: the best evaluation, at step %s, has no checkpoint, so the last weights are "
                "kept. Give save_steps the value of eval_steps, or use save_strategy='best'.",
                state.best_global_step,
            )
        elif processes.all_reduce_max([not os.path.isdir(self._absolute(best))])[0]:
            logger.warning("load_best_model_at_end: %s is gone, so the last weights are kept.", best)
        else:
            step = state.best_global_step  # early releases of transformers did not save it
            if step is not None and os.path.basename(best) != folders.checkpoint_folder("", step):
                logger.warning(
                    "load_best_model_at_end: the best evaluation, at step %s, has no checkpoint, so the weights of "
                    "the best checkpoint, %s, are loaded. Give save_steps the value of eval_steps, or use "
                    "save_strategy='best'.",
                    step,
                    best,
                )
            loading.load_weights(self._trainer.model, self._absolute(best))

    # The folders

    def folder(self) -> str:
        """Returns the folder of the current step's checkpoint, whether or not it exists."""
        return self._shown(folders.checkpoint_folder(self.run_dir, self._trainer.state.global_step))

    def is_saved(self) -> bool:
        """Returns True in all processes if the current step has a checkpoint of this run."""
        folder = folders.checkpoint_folder(self.run_dir, self._trainer.state.global_step)
        return self._trainer._mt_processes.first_does(lambda: os.path.isdir(folder) and folder not in self.stale)

    def newest(self) -> str | None:
        """Returns the newest checkpoint of the run, None if there is none."""
        own = [folder for folder in folders.find_checkpoints(self.run_dir) if folder not in self.stale]
        return self._shown(own[-1]) if own else None

    def rotate(self, run_dir: str | None = None) -> None:
        """Removes an overwritten run's checkpoints and those beyond the limit."""
        state = self._trainer.state
        run_dir = self.run_dir if run_dir is None else os.path.abspath(run_dir)
        newest = folders.find_checkpoints(run_dir)[-1:]
        if self._trainer._mt_run is not None:
            newest = [folders.checkpoint_folder(run_dir, state.global_step)]
        args, kept = self._trainer.args, {*newest, self._absolute(state.best_model_checkpoint)}
        self._remove_old(kept, args.save_total_limit, args.overwrite_output_dir, run_dir)

    def _remove_old(self, kept: set[str | None], limit: int | None, overwrite: bool, run_dir: str = "") -> None:
        self.stale.difference_update(kept)
        if overwrite:
            for folder in self.stale:
                folders.remove(folder)
            self.stale.clear()
        folders.rotate(run_dir or self.run_dir, limit, kept, self.stale)

    def keep_only_best(self) -> None:
        """Removes the last checkpoint after a run that was to keep one, if the best is another one of it."""
        args, best = self._trainer.args, self._absolute(self._trainer.state.best_model_checkpoint)
        is_own = best is not None and os.path.realpath(os.path.dirname(best)) == os.path.realpath(self.run_dir)
        if args.should_save and is_own and args.save_total_limit == 1:
            folders.rotate(self.run_dir, 1, {best}, self.stale)

    def _shown(self, folder: str) -> str:
        """Returns `folder` as the user gave the run's folder: relative, while that still leads there."""
        if os.path.isabs(self._given) or os.path.abspath(self._given) != self.run_dir:
            return folder
        return os.path.join(self._given, os.path.basename(folder))

    def _absolute(self, folder: Any) -> Any:
        """Returns a folder that may be relative to the working folder at the begin of the run; None for None."""
        return None if folder is None else os.path.normpath(os.path.join(self._working_dir, folder))


def _in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Starts `work` in a thread that ends with the process: what it writes must not matter until it is finished."""
    task: Future[Any] = Future()

    def run() -> None:
        try:
            task.set_result(work())
        except BaseException as error:
            task.set_exception(error)

    threading.Thread(target=run, name=_THREAD, daemon=True).start()
    return task
