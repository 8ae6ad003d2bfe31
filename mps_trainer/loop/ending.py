"""Cleans up at the end of a run, whether it finishes or fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..callbacks import close_display
from ..callbacks.events import Events
from ..checkpoints.saver import CheckpointSaver
from ..errors import add_to_explanation, explain, explanation_of
from ..guards.awake import awake
from ..guards.gpu_faults import explanation_of_mps_error
from ..model.number_formats import explain_format
from .surface import TrainerSurface


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
        trainer._mt_close_workers(*([] if run is None else [run.loader]))


def _end_report(events: Events, error: BaseException | None) -> None:
    if events.report is not None:
        events.report.end(error)
