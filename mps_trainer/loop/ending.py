"""Cleans up at the end of a run, whether it finishes or fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ..callbacks import close_display
from ..callbacks.events import Events
from ..data.loader import close_workers
from ..errors import add_to_explanation, explanation_of
from .run import TrainingRun


@contextlib.contextmanager
def ending_in_order(
    run: Callable[[], TrainingRun | None], events: Events, wait_for_save: Callable[[], None]
) -> Iterator[None]:
    """Ends workers and the report at the end of the run. After an error, also ends bars and the open checkpoint.

    Args:
        run: returns the run that is under way, None before there is one.
        wait_for_save: waits for the checkpoint that is being written.
    """
    try:
        yield
        _end_report(events, None)
    except BaseException as error:
        if (ended := run()) is not None:
            if isinstance(error, RuntimeError):
                ended.data_rng.explain(error)
            ended.data_rng.close()
        close_display(events.handler.callbacks)
        if not isinstance(error, KeyboardInterrupt):  # which is not to wait
            with contextlib.suppress(Exception):
                wait_for_save()
            if ended is not None and explanation_of(error) and (newest := ended.checkpointing.newest()) is not None:
                add_to_explanation(error, f"resume_from_checkpoint=True resumes from {newest}.")
        _end_report(events, error)
        raise
    finally:
        if (ended := run()) is not None:
            ended.data_rng.close()  # a run may end within an epoch; its workers would be killed when Python exits
            close_workers(ended.loader)


def _end_report(events: Events, error: BaseException | None) -> None:
    if events.report is not None:
        events.report.end(error)
