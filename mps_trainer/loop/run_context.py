"""Begins a run and ends it in order, whether it finishes or fails."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from ..callbacks import close_display
from ..callbacks.events import Events
from ..checkpoints.checkpoints import Checkpoints
from ..checkpoints.output_folder import make_folder, own_run_folder
from ..checkpoints.resume import checkpoint_to_resume
from ..checkpoints.saver import CheckpointSaver
from ..data.workers import close_workers
from ..distributed import absent_named
from ..distributed.same_data import check_same_data
from ..errors import add_to_explanation, explain, explanation_of
from ..guards.awake import awake
from ..guards.gpu_faults import explanation_of_mps_error
from ..guards.memory_errors import TRAINING, explained
from ..guards.supervised import supervised
from ..model.number_formats import explain_format
from ..model.preparation import prepared_for_training
from .run import TrainingRun
from .surface import TrainerSurface


@contextlib.contextmanager
def run_of(
    trainer: TrainerSurface, resume_from_checkpoint: str | bool | None = None, trial: Any = None
) -> Iterator[TrainingRun]:
    """Yields a run of the Trainer, prepared and resumed.

    At its end the patches and hooks of the model are removed, and the Trainer forgets the run. Weights, state and
    optimizer stay.

    Inside, the run has locked its output folder, and its supervisor and the other processes know that it runs. The
    model is prepared and patched for training, a signal saves and ends the run, and errors say what to do about them.

    Args:
        resume_from_checkpoint: a checkpoint folder, or True for the newest of the output folder.
        trial: the trial of a search for hyper-parameters, or None.
    """
    make_folder(trainer.args.output_dir)
    run_dir, processes = trainer._get_output_dir(trial), trainer._mt_processes
    phase = functools.partial(_current_phase, trainer)
    with (
        absent_named(phase),
        own_run_folder(run_dir, trainer.args, processes),
        supervised(run_dir, processes, trial) as trainer._mt_supervised,
        ending_in_order(trainer),
        absent_named(phase),  # here as well, because the report shows what it adds to an error
        explained(trainer, TRAINING),
    ):
        run_id = None if trainer._mt_supervised is None else trainer._mt_supervised.run_id
        trainer._mt_checkpoints, trainer.is_in_train = Checkpoints(run_dir, run_id), True
        check_same_data(trainer, processes)
        resume_from = checkpoint_to_resume(resume_from_checkpoint, run_dir, trainer._mt_supervised, processes)
        with prepared_for_training(trainer) as padding:
            run = TrainingRun(trainer, trial, resume_from, padding)
            run.resume()  # a signal interrupts the loading at once
            with run.signals:
                yield run


def _current_phase(trainer: TrainerSurface) -> str:
    """Returns the phase of the run that this process is in, for errors about absent processes."""
    if trainer._mt_run is None:
        return "the start of training"
    step = trainer.state.global_step
    return f"step {step + 1}" if step < trainer.state.max_steps else "the end of training"


@contextlib.contextmanager
def ending_in_order(trainer: TrainerSurface) -> Iterator[None]:
    """Keeps a Mac awake; at the end of the run ends workers and the report, and forgets the run.

    After an error, also ends bars and the open checkpoint.
    """
    events, args = trainer._mt_events, trainer.args
    try:
        with awake(args.keep_awake and args.device.type == "mps"):
            yield
        _end_report(events, None)
    except BaseException as error:
        explain_format(error)
        run = trainer._mt_run
        if run is not None:
            if isinstance(error, RuntimeError):
                run.batch_source.explain(error)
            if (explanation := explanation_of_mps_error(error)) is not None:
                explain(error, explanation)
            run.batch_source.close()
        close_display(trainer.callback_handler.callbacks)
        if not isinstance(error, KeyboardInterrupt):  # an interrupt must not wait
            with contextlib.suppress(Exception):
                CheckpointSaver(trainer).wait()
            if run is not None and explanation_of(error) and (newest := trainer._mt_checkpoints.newest()) is not None:
                add_to_explanation(error, f"resume_from_checkpoint=True resumes from {newest}.")
        _end_report(events, error)
        raise
    finally:
        run, trainer._mt_run = trainer._mt_run, None  # first: another interrupt may come while workers end
        trainer._mt_supervised, trainer.is_in_train = None, False
        if run is not None:
            run.batch_source.close()  # a run may end within an epoch; its workers would be killed when Python exits
        close_workers(*([] if run is None else [run.loader]), *trainer._eval_dataloaders.values())


def _end_report(events: Events, error: BaseException | None) -> None:
    if events.report is not None:
        events.report.end(error)
