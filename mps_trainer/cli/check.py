"""`mps-trainer check`: traces the first training step of a script and reports what would fail on a Mac."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from ..devices.facts import FALLBACK
from ..errors import MisconfigurationException
from ..launching.settings import USE_CPU
from ..tools.stopped import ScriptStopped
from ..utils.attributes import attributes_replaced
from ..utils.import_watch import when_imported
from ..utils.refusal import INTERRUPTED
from .script import add_flags, add_script, check_packages, check_paths, count, run_script, write_json

# Each of these modules imports the function from the one before.
_ASKED_FOR_BF16 = ("transformers.utils.import_utils", "transformers.utils", "transformers.training_args")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "check",
        opening="example: mps-trainer check train.py --output_dir out",
        help="check a script for Mac compatibility",
        description="Run a script on the CPU up to train() of this Trainer or transformers', or up to "
        "mps_trainer.check.trace, and trace one training step. Report which operators and number formats would "
        "fail on a Mac, and where the host would wait. Nothing is trained. The exit status is 0 if the step would run "
        "on a Mac, 1 if it would fail, 2 if the script did not reach it.",
    )
    command.add_argument(
        "--batches", type=count, default=1, help="number of training batches to trace (default: %(default)s)"
    )
    command.add_argument("--compile", action="store_true", help="also count the kernels of torch.compile, on Linux")
    command.add_argument("--verbose", action="store_true", help="also list the operators that run on mps")
    add_flags(command, "--json", "--fallback")
    add_script(command)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Traces the script's first training step; returns 0, 1 or 2 as the help says."""
    check_paths(arguments)
    check_packages()
    if arguments.fallback:
        os.environ[FALLBACK] = "1"  # before the import of torch, which reads it
    # The step is traced on the CPU, also on a Mac and also when the script asks for mps by name.
    os.environ[USE_CPU] = "true"
    try:
        with contextlib.ExitStack() as stack:
            if arguments.compile:  # on the simulated device, after the script has imported torch
                stack.enter_context(when_imported("check --compile", {"torch": lambda torch: None}, _hide_unused_cuda))
                from ..tools.simulator.build import check_machine

                check_machine()
            stack.enter_context(stop_at_first_step(arguments.batches))
            status = run_script(arguments.script, arguments.arguments, arguments.module)
    except ScriptStopped as stopped:
        report, trainer = stopped.found
        print(report.table(verbose=arguments.verbose))
        found, status = report.to_dict(), report.exit_code
        if arguments.compile:
            found["compiled"], compiles = _compile(trainer)
            status = status or int(not compiles)
        write_json(arguments.json, found)
        return status
    if status == INTERRUPTED:
        return status
    raise MisconfigurationException(
        f"{arguments.script} ended with status {status} before a training step, so there is nothing to report. It "
        "must call train() of this Trainer or transformers', or mps_trainer.check.trace. The check runs on the "
        "CPU: for a script that creates tensors on mps itself, use `mps-trainer simulate` on Linux."
    )


@contextlib.contextmanager
def stop_at_first_step(batches: int) -> Iterator[None]:
    """Makes train() of both Trainers, and `check.trace`, trace a step and raise ScriptStopped inside.

    The exception carries the report, and the Trainer or None. Modules are changed when the script has imported them.
    """

    def train_ours(trainer: Any, *args: Any, **kwargs: Any) -> None:
        from ..tools.check.step import trace_step

        raise ScriptStopped(trace_step(trainer, batches=batches, placed=placed[0]), trainer)

    def train_theirs(train: Callable[[Any], Any], trainer: Any, *args: Any, **kwargs: Any) -> None:
        from ..tools.check.first_step import trace_transformers

        trace_transformers(trainer, train, batches, placed[0])

    def trace(run_trace: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        raise ScriptStopped(run_trace(*args, **kwargs), None)

    def stop_ours(module: Any) -> None:
        change(module.Trainer, "train", train_ours)

    def stop_theirs(module: Any) -> None:
        train = module.Trainer.train
        change(module.Trainer, "train", lambda *args, **kwargs: train_theirs(train, *args, **kwargs))

    def stop_trace(module: Any) -> None:
        change(module, "trace", functools.wraps(module.trace)(functools.partial(trace, module.trace)))

    def follow_placement(torch: Any) -> None:
        from ..tools.check.placed import PlacedTensors

        placed.append(undo.enter_context(PlacedTensors()).residency)

    def allow_bf16(module: Any) -> None:
        # `TrainingArguments(bf16=True)` calls it; on a Mac it returns True from macOS 14 on
        change(module, "is_torch_bf16_gpu_available", lambda: True)

    def change(owner: Any, name: str, value: Any) -> None:
        undo.enter_context(attributes_replaced([(owner, name, value)]))

    placed: list[Any] = []  # one: the tensors that the script has placed on a device
    work = {
        "torch": follow_placement,
        "mps_trainer.check": stop_trace,
        "mps_trainer.trainer": stop_ours,
        "transformers.trainer": stop_theirs,
        **dict.fromkeys(_ASKED_FOR_BF16, allow_bf16),
    }
    with contextlib.ExitStack() as undo, when_imported(__name__, work):
        yield


def _hide_unused_cuda() -> None:
    from ..tools.simulator.cuda import hide_unused_cuda

    hide_unused_cuda()


def _compile(trainer: Any) -> tuple[dict[str, Any] | None, bool]:
    """Compiles the step and prints the counts. Returns them for JSON, and True if all of it was compiled."""
    from ..tools.simulator.compiled import compile_step, reason_of

    if trainer is None:
        print("torch.compile was not tried: it needs a Trainer, and the script calls mps_trainer.check.trace.")
        return None, False
    try:
        compiled = compile_step(trainer)
    except MisconfigurationException:
        raise
    except Exception as error:
        print(
            f"torch.compile was not tried: the step fails on the simulated mps device without it, {reason_of(error)}"
        )
        return None, False
    print(compiled)
    return compiled.to_dict(), not compiled.failures
