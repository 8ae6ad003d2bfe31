"""A step in a few lines, and ways to ask a report."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from mps_trainer.check import CoverageReport, Support, trace
from mps_trainer.tools.check.coverage_report import _WIDTHS


def names(report: CoverageReport, *supports: Support) -> set[str]:
    return {use.name for use in report.operators if not supports or use.support in supports}


def bad(report: CoverageReport) -> set[str]:
    return names(report, Support.FAILS, Support.FALLS_BACK)


def reads(report: CoverageReport) -> list[tuple[str, int, str]]:
    """Returns for each blocking read its kind, the number of calls, and the text of the line."""
    return [(read.what, read.calls, read.where.text if read.where else "") for read in report.blocking_reads]


def what_to_do(report: CoverageReport) -> str:
    """The text of the table's last column, in one line."""
    return " ".join(line[sum(_WIDTHS[:3]) + 3 :].strip() for line in str(report).splitlines())


@pytest.fixture
def trace_training() -> Callable[..., CoverageReport]:
    """Traces forward, backward, clipping and an optimizer's step of a module on the inputs given."""

    def run(
        module: nn.Module, *inputs: torch.Tensor, optimizer: Callable | None = None, clip: bool = True, **settings
    ) -> CoverageReport:
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        parameters = list(module.parameters())
        step = make(parameters) if parameters else None

        def training_step() -> None:
            output = module(*inputs)
            while isinstance(output, tuple):
                output = output[0]
            output.float().square().mean().backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            if step is not None:
                step.step()
                step.zero_grad()

        return trace(training_step, **settings)

    return run
