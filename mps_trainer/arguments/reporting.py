"""Logs, progress and reports."""

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
    logging_first_step: bool = option(False, "Also log the first step.")
    logging_nan_inf_filter: bool = option(
        True,
        "Replace nan and infinite losses by the mean of the others in the log. Training is not affected.",
    )
    log_level: str = option(
        "passive",
        "Log level of the main process; passive does not change it.",
        choices=["detail", "debug", "info", "warning", "error", "critical", "passive"],
    )
    log_level_replica: str = option(
        "warning",
        "Log level of all other processes.",
        choices=["detail", "debug", "info", "warning", "error", "critical", "passive"],
    )
    log_on_each_node: bool = option(True, "With several machines, log on one process of each.")
    disable_tqdm: bool | None = option(None, "Disable the progress bar. [disabled if the log level is above warning]")
    # None first and str second: HfArgumentParser takes the second member for the flag's type.
    report_to: None | str | list[str] = option(  # noqa: RUF036
        NOT_ASKED,
        "Trackers to report to: tensorboard, wandb, ..., all or none. An explicit none also disables the HTML report.",
    )
    report: bool = option(
        True,
        "Write report.html to output_dir: curves, device, faults, arguments. An explicit report_to none disables it.",
        kw_only=True,
    )
    run_name: str | None = option(None, "Name of the run for trackers.")
    project: str = option("huggingface", "Name of the project, for trackers with projects.")
    trackio_space_id: str | None = option(None, "Trackio: Space that shows the run.")
    trackio_bucket_id: str | None = option(None, "Trackio: bucket that stores the run.")
    trackio_static_space_id: str | None | Literal[False] = option(  # noqa: RUF036
        None, "Trackio: Space that shows the finished run; false for none."
    )
    include_num_input_tokens_seen: str | bool = option(
        "no", "Count the input tokens: all, non_padding or no; true and false mean all and no."
    )
    skip_memory_metrics: bool = option(True, "Do not add memory use to the metrics.")
    debug: str | list[DebugOption] = option("", "Debugging options, separated by spaces: underflow_overflow.")
