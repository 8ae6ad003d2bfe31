"""`mps-trainer report`: makes the page of a run again from its folder, or one that compares several."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..errors import MisconfigurationException, MissingPackageError

DESCRIPTION = """\
Make report.html again from the files in OUTPUT_DIR, the folder of a training
run, or compare it with other runs in one page."""
EPILOG = """\
One run is written to OUTPUT_DIR/report.html, several to comparison.html in the
current folder; --output names another file. A run of transformers' Trainer has
less to tell: its checkpoints know the curves, and no times.
The exit status is 0, and 2 when a folder has no run or a file is damaged."""

COMPARISON = "comparison.html"


def add_parser(commands: Any) -> None:
    command = commands.add_parser(
        "report",
        help="make the report of a run again, or compare runs",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("folder", metavar="OUTPUT_DIR", help="the output_dir of a run, or a checkpoint")
    command.add_argument("others", metavar="OTHER", nargs="*", help="runs to compare it with")
    command.add_argument("--output", metavar="FILE", help="where to write the page")
    command.set_defaults(run=run, failure=2)


def run(arguments: argparse.Namespace) -> int:
    """Writes the page and prints its path; returns 0."""
    from ..reports.comparison import comparison, told_apart
    from ..reports.page import page
    from ..reports.record import PAGE, is_foreign, replace
    from ..reports.sources import record_of

    folders = [arguments.folder, *arguments.others]
    path = arguments.output or (COMPARISON if arguments.others else os.path.join(arguments.folder, PAGE))
    records = [record_of(folder) for folder in folders]
    if is_foreign(path):
        raise MisconfigurationException(
            f"{path} exists and is no report of mps_trainer. Name another file with --output, or remove it."
        )
    try:
        if arguments.others:
            told_apart(records, folders)
            replace(path, comparison(records))
        else:
            replace(path, page(records[0]))
    except OSError as error:
        raise MisconfigurationException(
            f"{path} cannot be written: {error.strerror or error}. Name another file with --output."
        ) from error
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"The charts are drawn by pygal, which is not installed ({error}). Run: pip install pygal"
        ) from error
    print(path)
    return 0
