"""`mps-trainer fit`: says which Macs a script's training step fits on, without training."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import sys
from collections import defaultdict
from typing import Any

from ..errors import MisconfigurationException
from ..launching.settings import USE_CPU
from ..tools.stopped import ScriptStopped
from ..utils.attributes import attributes_replaced
from ..utils.import_watch import when_imported
from ..utils.refusal import INTERRUPTED
from .script import add_flags, add_script, check_packages, check_paths, count, run_script, write_json


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "fit",
        opening="example: mps-trainer fit train.py --output_dir out",
        help="estimate the memory of a training step",
        description="Run a script up to train() of this Trainer or transformers', and compute the memory of a "
        "training step on mps from the shapes of its tensors. The report shows the peak and its parts, the Macs on "
        "which the step fits, the effect of remedies such as gradient checkpointing and LoRA, and the least time by "
        "chip. Nothing is trained, and models of transformers are built without weights. The exit status is 0 if the "
        "step fits on one of the listed Macs, 1 if on none, 2 if the script did not reach train().",
    )
    command.add_argument(
        "--batches",
        type=count,
        default=16,
        help="use the largest of this many training batches (default: %(default)s)",
    )
    command.add_argument("--longest", action="store_true", help="also find the longest text that fits each Mac")
    add_flags(command, "--json")
    add_script(command)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs the script until it trains and prints what its step needs; returns 0, 1 or 2 as the help says."""
    check_paths(arguments)
    check_packages()
    os.environ[USE_CPU] = "true"  # the script needs no device, on a Mac either
    with contextlib.redirect_stderr(io.StringIO()):  # nothing is trained, by whichever Trainer
        from .. import replace_transformers

        replace_transformers.replace()
    with contextlib.ExitStack() as stack:
        stack.callback(replace_transformers.undo)

        def stop(module: Any) -> None:
            changes = [(module.Trainer, "train", _stop), (module.Trainer, "evaluate", _metrics_of_nan)]
            stack.enter_context(attributes_replaced(changes))

        def fake_models(module: Any) -> None:
            from ..tools.fit.fake_models import models_are_fake

            stack.enter_context(models_are_fake())

        # the script may set variables before it imports these modules
        work = {"mps_trainer.trainer": stop, "transformers.modeling_utils": fake_models}
        # transformers' modules import PEFT, so they cannot be imported while it is imported halfway
        stack.enter_context(when_imported(__name__, work, outside=["peft"]))
        try:
            status = run_script(arguments.script, arguments.arguments, arguments.module)
        except ScriptStopped as stopped:
            from ..tools.fit import estimate

            report = estimate(stopped.found[0], arguments.batches, _tell, arguments.longest)
            _tell("")
        else:
            if status == INTERRUPTED:
                return status
            raise MisconfigurationException(
                f"{arguments.script} ended with status {status} before it trained, so there is nothing to compute. "
                "It must call train() of this Trainer or transformers'."
            )
    print(report.table())
    write_json(arguments.json, report.to_dict())
    return int(report.smallest_mac is None)


def _stop(trainer: Any, *args: Any, **kwargs: Any) -> None:
    raise ScriptStopped(trainer)


def _metrics_of_nan(trainer: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
    return defaultdict(lambda: math.nan, {f"{metric_key_prefix}_loss": math.nan})  # a script asks for others too


def _tell(what: str) -> None:
    """Shows on a terminal what is being computed, in one line that the next one replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{f'Computing: {what}'[:100] if what else ''}", end="", file=sys.stderr, flush=True)
