"""The output folder of a run, which no other run trains into, and the end of a run, however it comes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..arguments.sharding import SHARDED
from ..callbacks import close_display, reports_among
from ..checkpoints import folders
from ..checkpoints.background import Background
from ..data.loader import close_workers
from ..distributed import Processes
from ..distributed.folder import only_run_of_all_in, require_shared
from ..training_args import TrainingArguments
from .events import Events
from .loop import TrainingRun


@contextlib.contextmanager
def own_run_folder(run_dir: str, args: TrainingArguments, processes: Processes) -> Iterator[None]:
    """Inside, no other process trains into the output folder, and nothing half written is in `run_dir`.

    Raises:
        MisconfigurationException: if another run is there, or a process does not see a folder that all have to share.
    """
    if (why := _why_shared(args)) is not None:
        require_shared(run_dir, processes, why)
    with only_run_of_all_in(args.output_dir, processes, args.should_save):
        if args.should_save:
            Background.settle()
            folders.clear_left_overs(run_dir)
        yield


def _why_shared(args: TrainingArguments) -> str | None:
    """Returns the reason why all processes have to see one output folder; None if they need not."""
    config: Any = args.fsdp_config
    if args.fsdp and config.get("state_dict_type") == SHARDED:
        return "each writes its part of a checkpoint there"
    if args.load_best_model_at_end and not args.save_on_each_node:
        return "load_best_model_at_end=True has all of them read the best checkpoint"
    return None


@contextlib.contextmanager
def ending_in_order(
    run: Callable[[], TrainingRun | None], events: Events, wait_for_save: Callable[[], None]
) -> Iterator[None]:
    """At the end, workers and reports end with the run; at an error, also bars and the checkpoint being written.

    Args:
        run: returns the run that is under way, None before there is one.
        wait_for_save: waits for the checkpoint that is being written.
    """
    try:
        yield
        _end_reports(events, None)
    except BaseException as error:
        if (ended := run()) is not None:
            if isinstance(error, RuntimeError):
                ended.data_rng.explain(error)
            ended.data_rng.close()
        close_display(events.handler.callbacks)
        if not isinstance(error, KeyboardInterrupt):  # which is not to wait
            with contextlib.suppress(Exception):
                wait_for_save()
        _end_reports(events, error)
        raise
    finally:
        if (ended := run()) is not None:
            ended.data_rng.close()  # a run may end within an epoch; its workers would be killed when Python exits
            close_workers(ended.loader)


def _end_reports(events: Events, error: BaseException | None) -> None:
    for report in reports_among(events.handler.callbacks):
        report.end(error)
