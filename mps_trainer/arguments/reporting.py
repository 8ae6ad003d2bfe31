"""Logs, evaluation and reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .choices import DebugOption, IntervalStrategy
from .fields import NotSupported, option
from .readers import read_debug_options, read_space, read_steps, read_token_count

_LEVELS = ["detail", "debug", "info", "warning", "error", "critical", "passive"]


@dataclass
class ReportingArguments:
    """Logs, progress and reports."""

    logging_strategy: IntervalStrategy | str = option("steps", "When to log: no, steps or epoch.")
    logging_steps: float = option(
        500, "Steps between two logs; below 1, a fraction of all steps.", ge=0, read=read_steps
    )
    logging_first_step: bool = option(False, "Also log the first step.")
    logging_nan_inf_filter: bool = option(
        True,
        "Replace nan and infinite losses by the mean of the others in the log. Training is not affected.",
    )
    log_level: str = option("passive", "Log level of the main process; passive does not change it.", choices=_LEVELS)
    log_level_replica: str = option("warning", "Log level of all other processes.", choices=_LEVELS)
    log_on_each_node: bool = option(True, "With several machines, log on one process of each.")
    disable_tqdm: bool | None = option(None, "Disable the progress bar. [disabled if the log level is above warning]")
    # None first and str second: HfArgumentParser takes the second member for the flag's type. The default is not
    # transformers' "none", which asks for no report either.
    report_to: None | str | list[str] = option(  # noqa: RUF036
        None,
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
        None, "Trackio: Space that shows the finished run; false for none.", read=read_space
    )
    include_num_input_tokens_seen: str | bool = option(
        "no", "Count the input tokens: all, non_padding or no; true and false mean all and no.", read=read_token_count
    )
    skip_memory_metrics: bool = option(True, "Do not add memory use to the metrics.")
    debug: str | list[DebugOption] = option(
        "",
        "Debugging options, separated by spaces: underflow_overflow.",
        read=read_debug_options,
        refused=NotSupported(
            "there is no TPU here",
            "Leave it out; mps-trainer check shows what a step does on mps",
            ("tpu_metrics_debug",),
        ),
    )


@dataclass
class EvaluationArguments:
    """Evaluation during training."""

    eval_strategy: IntervalStrategy | str = option("no", "When to evaluate during training: no, steps or epoch.")
    eval_steps: float | None = option(
        None, "Steps between two evaluations; below 1, a fraction of all steps. [logging_steps]", ge=0, read=read_steps
    )
    eval_delay: float = option(0, "Steps or epochs (see eval_strategy) before the first evaluation.", ge=0)
    eval_on_start: bool = option(False, "Evaluate before the first step.")
    prediction_loss_only: bool = option(False, "Compute only the loss; do not gather predictions and labels.")
    eval_accumulation_steps: int | None = option(
        None, "Number of batches after which predictions move from the device to host memory. [all]", ge=1
    )
    eval_do_concat_batches: bool = option(
        True, "Concatenate the predictions of all batches; otherwise return a list with an entry per batch."
    )
    eval_use_gather_object: bool = option(False, "With several processes, gather objects that are not tensors.")
    include_for_metrics: list[str] = field(
        default_factory=list, metadata={"help": "Further data for compute_metrics besides predictions: inputs, loss."}
    )
    batch_eval_metrics: bool = option(
        False, "Call compute_metrics after each batch, with compute_result=True after the last."
    )
