"""Writes, finds and removes the checkpoints of a run. Knows neither the Trainer nor its callbacks; see `saver.py`."""

from __future__ import annotations

import copy
import functools
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.trainer_callback import TrainerState

from ..distributed import Processes
from ..distributed.sharded import full_state_dict, is_sharded, whole_state
from ..errors import AnotherProcessFailedError, CheckpointError
from ..training_args import TrainingArguments
from . import folders, loading
from .files import why_not_written
from .loading import LOOP_STATE, OPTIMIZER, POSITION, Stateful
from .manifest import WEIGHTS
from .rng import RNG, rng_file, rng_of_processes
from .trainer_state_file import SavableLogs, write_trainer_state
from .writers import Save, Writer, state_dicts, write_state_dicts, writer_for, writes_shards

logger = logging.getLogger(__name__)

_THREAD = "mps_trainer checkpoint"


def wait_for_background() -> None:
    """Waits for all checkpoints that this process writes in the background. An interrupted run leaves one behind."""
    for thread in threading.enumerate():
        if thread.name == _THREAD:
            thread.join()


@dataclass(frozen=True)
class SaveResult:
    """Says whether a checkpoint was written.

    Attributes:
        folder: the folder of the checkpoint.
        best_before: the best checkpoint before this save.
        error: a clause that says why it was not written; None if it was.
    """

    folder: str
    best_before: str | None = None
    error: str | None = None


class Checkpoints:
    """Owns the folder of a run's checkpoints, and the one that is being written.

    Each save hands it the objects to save, because callbacks may replace the optimizer. Between saves it refers to
    neither the Trainer nor the model.

    The files of a checkpoint go to an unfinished folder, which then takes its name: a checkpoint that exists is
    complete. Training continues if one cannot be written.

    Args:
        run_dir: the folder of the run. It stays the same if the working folder changes.
        run_id: the id of a run under a supervisor, for the manifests.

    Attributes:
        stale: the checkpoints in the folder that this run does not continue: checkpoints of other runs, and of steps
            after the one that it resumed.
        unsaved: a sentence that says why the last checkpoint was not written; None if it was.
        unannounced: a checkpoint on disk that the callbacks have not heard of, or None.
    """

    def __init__(self, run_dir: str, run_id: str | None = None) -> None:
        self.run_dir = os.path.abspath(run_dir)
        self.stale: set[str] = set()
        self.unsaved: str | None = None
        self.unannounced: str | None = None
        self._original_dir = run_dir
        try:
            self._working_dir = os.getcwd()
        except FileNotFoundError:  # it was deleted, and an absolute `run_dir` does not need it
            self._working_dir = ""
        self._run_id = run_id
        self._last_save: int | None = None  # the number of the last save by this object
        self._writing: Future[SaveResult | None] | None = None  # the checkpoint in the background
        # During a save, what all processes have a part of: whole weights and optimizer state of a sharded model, the
        # positions, and a list of random states. `full_weights`, `write_stateful` and `write_rng` read it when an
        # override's save calls them; outside a save it is empty.
        self._gathered_for_current_save: dict[str, Any] = {}
        self._savable_logs = SavableLogs()

    def find_stale(self, resume_from: str | None, step: int) -> None:
        """Finds the checkpoints that a run does not continue: it resumes `resume_from`, at `step`, or starts anew."""
        paths = [] if resume_from is None else [os.path.abspath(resume_from), os.path.realpath(resume_from)]
        is_own = os.path.realpath(self.run_dir) in (os.path.realpath(os.path.dirname(path)) for path in paths)
        resumed_at = step if is_own else -1
        found = folders.find_checkpoints(self.run_dir)
        self.stale = {folder for folder in found if folders.step_of(folder) > resumed_at}

    # Saving

    def write(self, save: Save) -> SaveResult | None:
        """Writes a checkpoint. All processes must call it, after `wait`.

        Returns:
            The result, in the first of the processes that write. None in the others, and for a checkpoint that is
            written in the background: `wait` returns its result.
        """
        state, args = save.state, save.args
        folder, best_before = folders.checkpoint_folder(self.run_dir, state.global_step), state.best_model_checkpoint
        self._gathered_for_current_save = self._gather(save)
        try:
            if args.should_save:
                self._note_best(state)
            elif not writes_shards(save.model, args):
                return None
            writer = writer_for(save, self._gathered_for_current_save)
            rotate: Callable[[], None]
            if save.in_background:
                # the Trainer may have begun another run when the thread ends, so the thread reads copies only
                state, args = copy.copy(state), copy.copy(args)
                state.log_history = list(state.log_history)
                state.stateful_callbacks = copy.deepcopy(state.stateful_callbacks)
                self.unsaved = None  # an earlier failure does not keep this save's on_save
            if save.methods is not None:
                rotate = functools.partial(save.methods.rotate, self.run_dir)
            else:
                rotate = functools.partial(self.rotate, state, args, save.in_run)
            # a thread may not exchange anything with the other processes
            processes = Processes() if writer.write_shards is None else save.processes
            loop_state = self._gathered_for_current_save.get(LOOP_STATE)
            work = functools.partial(
                self._write_and_commit, writer, processes, state, loop_state, folder, best_before, rotate
            )
            if not save.in_background:
                return work()
            self._writing = _in_thread(work)
            return None
        finally:
            self._gathered_for_current_save = {}

    def is_written(self) -> bool:
        """Returns True if `wait` has a result and will not wait for it."""
        return self._writing is not None and self._writing.done()

    def wait(self) -> SaveResult | None:
        """Waits for the checkpoint in the background. Returns its result, or raises its error, once."""
        writing = self._writing
        is_running = any(thread.name == _THREAD for thread in threading.enumerate())  # False in a forked process
        if writing is not None and is_running:
            wait([writing])  # a signal may interrupt it, so the checkpoint is forgotten afterwards
        self._writing = None
        return writing.result() if writing is not None and writing.done() else None

    def note_result(self, result: SaveResult, state: TrainerState) -> None:
        """Notes whether a checkpoint was written. If not, logs why, and the best one before it is the best again."""
        if result.error is None:
            self.unsaved, self.unannounced = None, result.folder
            return
        newest = self.newest()
        left = "There is none." if newest is None else f"The last one is {newest}."
        self.unsaved = f"{result.folder} could not be saved: {result.error}. {left}"
        logger.error("%s Training does not stop for it: free some disk space or allow writing.", self.unsaved)
        if self._absolute(state.best_model_checkpoint) == result.folder and not os.path.isdir(result.folder):
            state.best_model_checkpoint = result.best_before

    def require_saved(self) -> None:
        """Raises CheckpointError if the last checkpoint of the run could not be saved."""
        if self.unsaved is not None:
            raise CheckpointError(
                f"Training has ended, but {self.unsaved} Make room or give permission, then save the model that is "
                "in memory with save_model(), or resume from the last checkpoint."
            )

    def _gather(self, save: Save) -> dict[str, Any]:
        """Returns what all processes have a part of, by the names of its files. All of them must call it."""
        gathered: dict[str, Any] = {}
        if POSITION in save.stateful:
            positions = save.processes.gather(save.stateful[POSITION].state_dict())
            gathered[RNG] = [each["rng"] for each in positions]
            if "loop" in positions[0]:
                gathered[LOOP_STATE] = {"processes": [each["loop"] for each in positions]}
        if is_sharded(save.model) and not writes_shards(save.model, save.args):
            gathered[WEIGHTS] = full_state_dict(save.model, keep=save.args.should_save)
            if OPTIMIZER in save.stateful:
                optimizer: Any = save.stateful[OPTIMIZER]
                gathered[OPTIMIZER] = whole_state(optimizer, keep=save.args.should_save)
        return gathered

    def _write_and_commit(
        self,
        writer: Writer,
        processes: Processes,
        state: TrainerState,
        loop_state: dict[str, Any] | None,
        folder: str,
        best_before: str | None,
        rotate: Callable[[], None],
    ) -> SaveResult | None:
        """Writes a checkpoint, then removes old ones. If one of `processes` cannot write its part, none does."""
        unfinished = os.path.join(self.run_dir, f"{folders.UNFINISHED}{state.global_step}")

        def make_folder() -> None:
            shutil.rmtree(unfinished, ignore_errors=True)
            os.makedirs(unfinished)

        def write_files_and_commit() -> None:
            # every checkpoint goes through here: write a further file before the commit
            writer.write_files(unfinished)
            self.write_trainer_state(state, unfinished)
            if loop_state is not None:
                write_state_dicts({LOOP_STATE: loop_state}, unfinished)
            self._last_save = folders.commit(unfinished, folder, state.global_step, self._run_id, self._last_save)

        error = None
        try:
            processes.first_does(make_folder)
            if writer.write_shards is not None:
                processes.all_do(functools.partial(writer.write_shards, unfinished))
            processes.first_does(write_files_and_commit)
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
        return SaveResult(folder, best_before, error)

    def _note_best(self, state: TrainerState) -> None:
        """Records the checkpoint of the best weights, which may be the one that is written next."""
        best = folders.checkpoint_folder(self.run_dir, state.best_global_step or 0)
        is_there = os.path.isdir(best) and best not in self.stale
        if state.best_global_step and (state.best_global_step == state.global_step or is_there):
            state.best_model_checkpoint = self.user_path(best)

    # Single files of a checkpoint, for overrides that write them

    def full_weights(self, model: nn.Module, keep: bool) -> dict[str, Any] | None:
        """Returns the full weights of a sharded model, else None. All processes must call it.

        Args:
            keep: False in a process that writes nothing, to save memory.
        """
        if WEIGHTS in self._gathered_for_current_save or not is_sharded(model):
            return self._gathered_for_current_save.get(WEIGHTS)
        return full_state_dict(model, keep=keep)

    def write_stateful(self, stateful: Mapping[str, Stateful], folder: str) -> None:
        """Writes state dicts to the files of their names; whole ones of a sharded model during a save."""
        whole = {name: content for name, content in self._gathered_for_current_save.items() if name in stateful}
        write_state_dicts(state_dicts(stateful, whole), folder)

    def write_rng(self, own: dict[str, Any], folder: str, processes: Processes) -> None:
        """Writes the random states of this process, or of all processes during a save of several."""
        files = {rng_file(processes.rank, processes.size): own}
        if processes.is_distributed and RNG in self._gathered_for_current_save:
            files = rng_of_processes(self._gathered_for_current_save[RNG])
        write_state_dicts(files, folder)

    def write_trainer_state(self, state: TrainerState, folder: str) -> None:
        """Writes trainer_state.json without log entries that JSON cannot hold.

        Raises:
            OSError: if the disk does not take it.
        """
        write_trainer_state(state, folder, self._savable_logs)

    # Loading

    def load_best(self, model: nn.Module, state: TrainerState, processes: Processes) -> None:
        """Loads the weights of the best checkpoint. Warns if the best evaluation has no checkpoint."""
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
            loading.load_weights(model, self._absolute(best))

    # The folders

    def folder(self, step: int) -> str:
        """Returns the folder of the checkpoint of `step`, whether or not it exists."""
        return self.user_path(folders.checkpoint_folder(self.run_dir, step))

    def is_saved(self, step: int, processes: Processes) -> bool:
        """Returns True in all processes if `step` has a checkpoint of this run."""
        folder = folders.checkpoint_folder(self.run_dir, step)
        return processes.first_does(lambda: os.path.isdir(folder) and folder not in self.stale)

    def newest(self) -> str | None:
        """Returns the newest checkpoint of the run, None if there is none."""
        own = [folder for folder in folders.find_checkpoints(self.run_dir) if folder not in self.stale]
        return self.user_path(own[-1]) if own else None

    def rotate(self, state: TrainerState, args: TrainingArguments, in_run: bool, run_dir: str | None = None) -> None:
        """Removes an overwritten run's checkpoints and those beyond the limit. Keeps the newest and the best.

        Args:
            in_run: True to keep the current step's checkpoint; False to keep the one with the highest step.
            run_dir: default the folder of the run.
        """
        run_dir = self.run_dir if run_dir is None else os.path.abspath(run_dir)
        newest = folders.find_checkpoints(run_dir)[-1:]
        if in_run:
            newest = [folders.checkpoint_folder(run_dir, state.global_step)]
        kept: set[str | None] = {*newest, self._absolute(state.best_model_checkpoint)}
        self.stale.difference_update(each for each in kept if each is not None)
        if args.overwrite_output_dir:
            for folder in self.stale:
                folders.remove(folder)
            self.stale.clear()
        folders.rotate(run_dir, args.save_total_limit, kept, self.stale)

    def keep_only_best(self, state: TrainerState, args: TrainingArguments) -> None:
        """Removes the last checkpoint of a run with `save_total_limit=1` if the best one is another."""
        best = self._absolute(state.best_model_checkpoint)
        is_own = best is not None and os.path.realpath(os.path.dirname(best)) == os.path.realpath(self.run_dir)
        if args.should_save and is_own and args.save_total_limit == 1:
            folders.rotate(self.run_dir, 1, {best}, self.stale)

    def user_path(self, folder: str) -> str:
        """Returns `folder` as the user wrote the run's folder: relative, while that still leads there."""
        if os.path.isabs(self._original_dir) or os.path.abspath(self._original_dir) != self.run_dir:
            return folder
        return os.path.join(self._original_dir, os.path.basename(folder))

    def _absolute(self, folder: Any) -> Any:
        """Returns a folder that may be relative to the working folder at the begin of the run; None for None."""
        return None if folder is None else os.path.normpath(os.path.join(self._working_dir, folder))


def _in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Starts `work` in a thread that ends with the process, so unfinished work must do no harm."""
    task: Future[Any] = Future()

    def run() -> None:
        try:
            task.set_result(work())
        except BaseException as error:
            task.set_exception(error)

    threading.Thread(target=run, name=_THREAD, daemon=True).start()
    return task
