"""`mps-trainer report`: writes the report of a run again, or a page that compares several runs."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..errors import MisconfigurationException, MissingPackageError
from ..utils.text import sentence

COMPARISON = "comparison.html"


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "report",
        opening="example: mps-trainer report out",
        help="write the report of a run again, or compare runs",
        description="Write report.html again from the files of a run in OUTPUT_DIR, or compare the run with others on "
        "one page.",
        epilog="The report of one run goes to OUTPUT_DIR/report.html. A comparison goes to comparison.html in the "
        "current folder. For a run of transformers' Trainer, the report has curves but no times, because its "
        "checkpoints do not record them. The exit status is 0, or 2 when a folder has no run or a file is damaged.",
    )
    command.add_argument("folder", metavar="OUTPUT_DIR", help="the output_dir of a run, or one of its checkpoints")
    command.add_argument("others", metavar="OTHER", nargs="*", default=[], help="runs to compare it with")
    command.add_argument("--output", metavar="FILE", help="write the page to FILE")
    return command


def run(arguments: argparse.Namespace) -> int:
    """Writes the page and prints its path; returns 0."""
    from ..reports.record import NAME, PAGE, record_of, replace

    if arguments.output == "":
        raise MisconfigurationException("--output '' names no file. Name one, or leave --output out.")
    folders = [arguments.folder, *arguments.others]
    path = arguments.output or (COMPARISON if arguments.others else os.path.join(arguments.folder, PAGE))
    records = [record_of(folder) for folder in folders]
    try:
        from ..reports.pages import comparison_page, run_page, tell_apart

        if arguments.others:
            tell_apart(records, folders)
        page = comparison_page(records) if arguments.others else run_page(records[0])
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"A report needs pygal and Jinja2 ({error}). Run: pip install pygal jinja2"
        ) from error
    except Exception as error:  # a file that was edited may have any value
        sources = ", ".join(
            os.path.join(folder, record.source) for folder, record in zip(folders, records, strict=True)
        )
        raise MisconfigurationException(
            f"{path} was not written: no report can be made of {sources} ({type(error).__name__}: {sentence(error)}) "
            f"Remove {NAME} if it was edited, and the report is made from the checkpoints beside it."
        ) from error
    try:
        replace(path, page)
    except OSError as error:
        raise MisconfigurationException(
            f"{path} cannot be written: {error.strerror or error}. Name another file with --output."
        ) from error
    print(path)
    return 0
