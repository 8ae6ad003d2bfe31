"""Runs a script of your own: flags, the output folder, and one line for each error.

The examples are made with it, and each of their folders needs nothing else of the project.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..devices.facts import process_number
from ..errors import CheckpointError, MisconfigurationException, explanation_of
from ..utils.refusal import FAILED, INTERRUPTED, refuse, refuse_unforeseen
from ..utils.terminal import lost_output_ignored, on_terminal
from ..utils.text import sentence

if TYPE_CHECKING:
    from ..training_args import TrainingArguments

FIRST_SPEAKS = 5.0  # seconds, in which the first one may have a report to write, and torchrun sees that it has ended
_INTERRUPTED = (
    "Interrupted. To continue from the newest checkpoint, if there is one, add --resume_from_checkpoint True to the "
    "command."
)


@lost_output_ignored()
def run(
    name: str, parse: Callable[[], tuple[Any, ...]], prepare: Callable[..., Any], do: Callable[[Any], None]
) -> int:
    """Runs the script `name`: `do(prepare(*parse()))`.

    Args:
        parse: returns the arguments; the last are the TrainingArguments.
        prepare: does everything before training, and refuses a run that cannot begin.
        do: trains, and does what follows.

    Returns:
        The exit status: 0, 2 for wrong input, 1 for a failure on the way, 130 when interrupted. SIGTERM ends it with
        143.

    Raises:
        Exception: an unforeseen error of `do`; after hours of training it is shown with its traceback.
    """
    begun = False
    try:
        arguments = parse()
        with no_empty_folder_left(arguments[-1].output_dir):
            job = prepare(*arguments)
            begun = True
            do(job)
    except MisconfigurationException as error:
        return refuse(_speaker(name), error)
    except CheckpointError as error:
        return refuse(_speaker(name), error, status=FAILED)
    except KeyboardInterrupt as error:
        if text := str(error) or ("" if process_number() else _INTERRUPTED):
            print(f"{name}: {text}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if (explanation := explanation_of(error)) is not None:
            text = str(error).strip()
            said = (
                text.splitlines()[-1] if text.startswith("Caught ") else f"{type(error).__name__}: {sentence(error)}"
            )
            return refuse(_speaker(name), error, status=FAILED, instead=f"{said.rstrip('.')}. {explanation}")
        if begun:
            raise
        return refuse_unforeseen(_speaker(name), error)
    return 0


def _speaker(name: str) -> str:
    """Returns the name of the script, with the number of the process if it is not the first.

    The first process reports what all refuse: the others wait for the launcher to end them.
    """
    number = process_number()
    if not number:
        return name
    time.sleep(FIRST_SPEAKS)
    return f"{name}: process {number}"


def set_up_logging(training_args: TrainingArguments) -> None:
    """Logs to standard output, with the time, at the level of `log_level` for this process.

    Of several processes those that do not log show no bars of transformers and datasets either, and no warnings of the
    script, which are the same in all, unless `log_level_replica` says so; where there is no terminal, none shows the
    bars of libraries that load weights and files.
    """
    import transformers

    level = training_args.get_process_log_level()
    if not training_args.should_log:
        transformers.utils.logging.disable_progress_bar()
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # where datasets is not loaded yet
        if (datasets := sys.modules.get("datasets")) is not None:
            datasets.disable_progress_bars()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    if not training_args.should_log and training_args.log_level_replica == "warning":
        logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger("mps_trainer").setLevel(level)
    transformers.utils.logging.set_verbosity(level)
    if not on_terminal():
        transformers.utils.logging.disable_progress_bar()


@contextlib.contextmanager
def no_empty_folder_left(path: str) -> Iterator[None]:
    """Removes the output folder if the Trainer created it for a run that is then refused."""
    existed = os.path.isdir(path)
    try:
        yield
    except MisconfigurationException:
        if not existed:
            with contextlib.suppress(OSError):  # something is in it, or it was never made
                os.rmdir(path)
        raise
