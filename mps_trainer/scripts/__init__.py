"""Helps a script of your own: one line for each error, the log, and the output folder."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices.launchers import process_number
from ..errors import CheckpointError, MisconfigurationException, explanation_of
from ..utils.installation import EXTRAS, how_to_install
from ..utils.refusal import FAILED, INTERRUPTED, refuse
from ..utils.terminal import lost_output_ignored, on_terminal
from ..utils.text import sentence

if TYPE_CHECKING:
    from ..training_args import TrainingArguments

FIRST_SPEAKS = 5.0  # seconds: the first one may have a report to write, and torchrun sees that it has ended
_INTERRUPTED = (
    "Interrupted. To continue from the newest checkpoint, if there is one, add --resume_from_checkpoint True to the "
    "command."
)


def one_line_errors(name: str) -> Callable[[Callable[..., None]], Callable[..., int]]:
    """Decorates `main` of the script `name`: it returns the exit status, and a known error is one line on stderr.

    The status is 0, 2 for wrong input, 1 for a failure on the way, 130 when interrupted. SIGTERM ends the script with
    143, SIGHUP with 129. An unforeseen error keeps its traceback.
    """

    def decorate(main: Callable[..., None]) -> Callable[..., int]:
        @functools.wraps(main)
        @lost_output_ignored()
        def run(*arguments: Any) -> int:
            try:
                main(*arguments)
            except MisconfigurationException as error:
                return refuse(_speaker(name), error)
            except CheckpointError as error:
                return refuse(_speaker(name), error, status=FAILED)
            except ModuleNotFoundError as error:
                return _refuse_missing(name, error)
            except KeyboardInterrupt as error:
                if text := str(error) or ("" if process_number() else _INTERRUPTED):
                    print(f"{name}: {text}", file=sys.stderr)
                return INTERRUPTED
            except Exception as error:
                if (explanation := explanation_of(error)) is None:
                    raise
                lines, said = str(error).strip().splitlines(), f"{type(error).__name__}: {sentence(error)}"
                said = lines[-1] if lines and lines[0].startswith("Caught ") else said  # by a worker process
                return refuse(_speaker(name), error, status=FAILED, instead=f"{said.rstrip('.')}. {explanation}")
            return 0

        return run

    return decorate


@contextlib.contextmanager
def one_line_import_errors(name: str) -> Iterator[None]:
    """Ends the script `name` with one line if it imports a missing package inside, such as TRL."""
    try:
        yield
    except ModuleNotFoundError as error:
        sys.exit(_refuse_missing(name, error))


def _refuse_missing(name: str, error: ModuleNotFoundError) -> int:
    """Prints the extra that installs a missing package; raises the error for a package of no extra."""
    if (error.name or "").partition(".")[0] not in EXTRAS:
        raise error
    return refuse(_speaker(name), error, FAILED, f"{sentence(error)} {how_to_install(error.name)}")


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

    Libraries draw no bars without a terminal. In several processes, the processes that do not log draw no bars either.
    They also hide the script's warnings, which are the same in all, unless `log_level_replica` is set.
    """
    import transformers

    level = training_args.get_process_log_level()
    if not training_args.should_log or not on_terminal():
        transformers.utils.logging.disable_progress_bar()
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # datasets may load later
        if (datasets := sys.modules.get("datasets")) is not None:
            datasets.disable_progress_bars()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    if not training_args.should_log and training_args.log_level_replica == "warning":
        logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger("mps_trainer").setLevel(level)
    transformers.utils.logging.set_verbosity(level)


def checkpoint_to_resume(training_args: TrainingArguments) -> str | bool | None:
    """Returns `resume_from_checkpoint`, or True if the output folder has a checkpoint of this run.

    Raises:
        MisconfigurationException: if the output folder has other files, and `overwrite_output_dir` is not set.
    """
    folder, named = Path(training_args.output_dir), training_args.resume_from_checkpoint
    if named is not None or training_args.overwrite_output_dir or not folder.is_dir():
        return named
    if any(folder.glob("checkpoint-*")):
        print(f"Resuming from the newest checkpoint in {folder}; use --overwrite_output_dir to start again.")
        return True
    if any(not path.name.startswith((".", "tmp-checkpoint-")) for path in folder.iterdir()):
        raise MisconfigurationException(
            f"--output_dir {folder} exists, is not empty and has no checkpoint to resume from. Name another "
            "folder, or add --overwrite_output_dir."
        )
    return None


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
