"""What is logged, when, and to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .choices import DebugOption, IntervalStrategy
from .fields import option

# The default of report_to, whose type and value have to be transformers': another object than a "none" that a user
# wrote, so that identity tells them apart. A script's parser hands a default on as it is.
NOT_ASKED = "".join(["no", "ne"])


@dataclass
class ReportingArguments:
    logging_strategy: IntervalStrategy | str = option("steps", "When to log: no, steps or epoch.")
    logging_steps: float = option(500, "Steps between two logs; below 1, a fraction of all steps.", ge=0)
    logging_first_step: bool = option(False, "Log the first step too.")
    logging_nan_inf_filter: bool = option(
        True,
        "In the logged mean, a nan or infinite loss counts as the mean of the others; training sees it as it is.",
    )
    log_level: str = option(
        "passive",
        "Log level of the main process; passive leaves it as it is.",
        choices=["detail", "debug", "info", "warning", "error", "critical", "passive"],
    )
    log_level_replica: str = option(
        "warning",
        "Log level of all other processes.",
        choices=["detail", "debug", "info", "warning", "error", "critical", "passive"],
    )
    log_on_each_node: bool = option(True, "With several machines, one process of each logs.")
    disable_tqdm: bool | None = option(None, "No progress bar. [bar unless the log level is above warning]")
    # None first and str second: HfArgumentParser takes the second member for the flag's type.
    report_to: None | str | list[str] = option(  # noqa: RUF036
        NOT_ASKED,
        "Tracker to report to: tensorboard, wandb, ..., all or none; none, written out, means no report either.",
    )
    report: bool = option(
        True,
        "Leave report.html in output_dir: curves, device, faults, arguments. Not with report_to none, written out.",
    )
    run_name: str | None = option(None, "Name of the run for trackers.")
    project: str = option("huggingface", "Name of the project for trackers that have projects.")
    trackio_space_id: str | None = option(None, "Trackio: the Space that shows the run.")
    trackio_bucket_id: str | None = option(None, "Trackio: the bucket that keeps the run.")
    trackio_static_space_id: str | None | Literal[False] = option(  # noqa: RUF036
        None, "Trackio: a Space that shows the finished run; false for none."
    )
    include_num_input_tokens_seen: str | bool = option(
        "no", "Count the tokens of the inputs: all, non_padding or no; true and false mean all and no."
    )
    skip_memory_metrics: bool = option(True, "Leave memory use out of the metrics.")
    debug: str | list[DebugOption] = option("", "Debugging aids, separated by blanks: underflow_overflow.")
