"""Defines `TrainingArguments`, the settings of a run. The device is chosen on first access."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from . import distributed
from .arguments import checks, sharding
from .arguments.choices import Choice, of_transformers
from .arguments.data import DataArguments
from .arguments.deprecated import DeprecatedArguments, apply_deprecated
from .arguments.device import DeviceArguments, ParallelArguments
from .arguments.fields import Declaration, declarations, documented
from .arguments.model import LAUNCHED, PRECISIONS, ModelArguments, PrecisionArguments
from .arguments.readers import read_json_of_library, refuse
from .arguments.reporting import EvaluationArguments, ReportingArguments
from .arguments.saving import CheckpointingArguments, HubArguments
from .arguments.setters import Setters
from .arguments.training import OptimizationArguments, RunArguments
from .devices import Decision, DeviceRequest, gather_facts, resolve
from .devices.watermarks import memory_limit

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@documented
@dataclass
class TrainingArguments(
    DeprecatedArguments,
    Setters,
    DeviceArguments,
    ParallelArguments,
    HubArguments,
    ModelArguments,
    CheckpointingArguments,
    EvaluationArguments,
    ReportingArguments,
    DataArguments,
    PrecisionArguments,
    OptimizationArguments,
    RunArguments,  # the last base gives the first fields: output_dir may be passed by position
):
    """All settings of a training run, with transformers' names, types and defaults.

    `HfArgumentParser` turns the fields into command-line flags and shows the `help` of each field. Building the
    arguments checks their values. It uses no device, creates no folder and does not import torch.

    Raises:
        ValueError: for a value that cannot be right; names the field, the value and what is accepted.
    """

    def __post_init__(self) -> None:
        self._settle_unset()
        self._launched_in = os.environ.get(LAUNCHED, "no").lower()
        if self._launched_in not in PRECISIONS:
            raise refuse(LAUNCHED, self._launched_in, "one of " + ", ".join(PRECISIONS))
        declared = _declared(type(self))
        checks.coerce(self, declared)
        apply_deprecated(self, declared)
        self._derive()
        for name in set(self._VALID_DICT_FIELDS).difference(TrainingArguments._VALID_DICT_FIELDS):
            setattr(self, name, read_json_of_library(name, getattr(self, name)))  # transformers does so
        self.check()
        if self._stands_in:
            _ = self.distributed_state

    def check(self) -> None:
        """Makes the values right after some have changed.

        Raises:
            ValueError: for a value, or a combination of them, that cannot be right.
        """
        declared = _declared(type(self))
        checks.coerce(self, declared)
        if self.report_to is None or self.report_to == ["none"]:
            self.report_to = []
        elif self.report_to == ["all"]:
            from transformers.integrations import get_available_reporting_integrations

            self.report_to = get_available_reporting_integrations()
        self._checked_report_to = self.report_to
        checks.check_values(self)
        sharding.settle(self)

    def _settle_unset(self) -> None:
        """Replaces None in fields that are never None afterwards, and merges the names of activation checkpointing."""
        if self.report_to in ("none", ["none"]):
            self.report = False
        if self.accelerator_config is None:
            self.accelerator_config = {}
        for name in ("hub_token", "push_to_hub_token"):
            if getattr(self, name) in ("", f"<{name.upper()}>"):  # to_dict() hides tokens so
                setattr(self, name, None)
        if self.output_dir is None:  # transformers' default
            self.output_dir = "trainer_output"
        self.merge_checkpointing()

    def _derive(self) -> None:
        """Sets fields whose default depends on other fields."""
        self.output_dir = os.path.expanduser(self.output_dir)
        self.do_eval = self.do_eval or self.eval_strategy != "no"
        if self.eval_strategy == "steps" and not self.eval_steps:
            self.eval_steps = self.logging_steps
        follows_a_metric = self.lr_scheduler_type in checks.FOLLOW_METRIC
        if (follows_a_metric or self.load_best_model_at_end) and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = not self.metric_for_best_model.endswith("loss")
        if self.torch_compile_backend is not None or self.torch_compile_mode is not None:
            self.torch_compile = True
        if self.torch_compile and self.torch_compile_backend is None:
            self.torch_compile_backend = "inductor"
        if self.use_cpu:
            self.dataloader_pin_memory = False
        if self.disable_tqdm is None:
            self.disable_tqdm = logging.getLogger("transformers").getEffectiveLevel() > logging.WARNING

    @property
    def writes_report(self) -> bool:
        """Returns True if a run writes `report.html`.

        False with `report=False`, and where `report_to` was emptied once the arguments were made, as a subclass may
        do in `__post_init__`.
        """
        checked = getattr(self, "_checked_report_to", self.report_to)  # older pickles lack it
        return self.report and (self.report_to is checked or self.report_to not in ([], "none", ["none"]))

    def use_transformers_choices(self) -> None:
        """Replaces enum members with members of transformers' classes, which must be loaded by now.

        They are these members from the start if transformers was loaded before the arguments were built.
        """
        for name, value in vars(self).items():
            if isinstance(value, Choice):
                setattr(self, name, of_transformers(value))

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields without the device, because another machine may load the arguments."""
        return {name: value for name, value in vars(self).items() if name not in ("decision", "device")}

    # The device

    @functools.cached_property
    def decision(self) -> Decision:
        """Returns the chosen device and the reasons. The first access makes and logs the decision.

        Raises:
            DeviceUnavailableError: if an accelerator asked for by name cannot run on this machine.
            MisconfigurationException: if several processes or devices are requested of an accelerator that has one.
        """
        request = DeviceRequest(
            accelerator=self.accelerator,
            devices=self.devices,
            use_cpu=self.use_cpu,
            ddp_backend=self.ddp_backend,
        )
        limit = memory_limit(self.memory_fraction) if self.memory_guard else None
        decision = resolve(request, gather_facts(memory_limit=limit))
        logger.info("%s", decision)
        for warning in filter(None, (decision.idle, *decision.notes)):
            logger.warning("%s", warning)
        return decision

    @functools.cached_property
    def device(self) -> torch.device:
        """Returns the device of this process. With several processes it sets up the process group first."""
        if self.decision.world_size > 1:
            offloads = bool(self.fsdp and self.fsdp_config.get("cpu_offload"))  # type: ignore[union-attr]
            distributed.init_process_group(self.decision, self.ddp_backend, self.ddp_timeout_delta, host_too=offloads)
        return self.decision.device

    @property
    def distributed_state(self) -> Any:
        """Returns Accelerate's state of the processes, for libraries that use it."""
        from .distributed.accelerate_state import shared_state  # it needs torch

        return shared_state(self.device, self.world_size)

    @property
    def n_gpu(self) -> int:
        """Returns the number of accelerators that this process uses, which is 1, or 0 on the CPU."""
        return 0 if self.decision.type == "cpu" else 1

    @property
    def parallel_mode(self) -> Enum:
        from transformers.training_args import ParallelMode  # it needs torch

        return ParallelMode.DISTRIBUTED if self.world_size > 1 else ParallelMode.NOT_PARALLEL

    @property
    def _setup_devices(self) -> torch.device:
        return self.device

    @property
    def _n_gpu(self) -> int:
        return self.n_gpu

    @_n_gpu.setter
    def _n_gpu(self, count: int) -> None:
        """Does nothing: transformers' search with Ray sets it, and Ray shows a trial its GPUs alone."""

    @property
    def place_model_on_device(self) -> bool | None:
        """Returns True if the Trainer moves the model to the device, None to let it decide. For subclasses."""
        return None

    @property
    def mixed_precision(self) -> str:
        """Returns autocast's format: fp16, bf16 or no. The fields override the launcher's setting."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else self._launched_in

    @mixed_precision.setter
    def mixed_precision(self, value: str) -> None:
        self.fp16, self.bf16, self._launched_in = value == "fp16", value == "bf16", value

    # attributes of refused features, for code that looks for them
    _launched_in = "no"  # ACCELERATE_MIXED_PRECISION when the arguments were made
    deepspeed_plugin = hf_deepspeed_config = fsdp_plugin_args = None
    _no_sync_in_gradient_accumulation = True
    # whether transformers.TrainingArguments is this class: libraries use Accelerate once they have arguments
    _stands_in = False
    # fields that may be JSON on a command line; libraries add theirs
    _VALID_DICT_FIELDS = [  # noqa: RUF012 - transformers' name and type
        "accelerator_config",
        "fsdp_config",
        "deepspeed",
        "activation_checkpointing_kwargs",
        "gradient_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    ]

    # Processes

    @property
    def world_size(self) -> int:
        """Returns the number of processes that train together."""
        return self.decision.world_size

    @property
    def process_index(self) -> int:
        """Returns the rank of this process among all, from 0."""
        return self.decision.rank

    @property
    def local_process_index(self) -> int:
        """Returns the rank of this process among those on its machine, from 0."""
        return self.decision.local_rank

    @property
    def should_log(self) -> bool:
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def ddp_timeout_delta(self) -> timedelta:
        return timedelta(seconds=self.ddp_timeout)

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Runs the block in the main process first (of each machine if `local`) while the others wait.

        Use it for work with a result cached on disk, such as `datasets.map`. With one process it does nothing.
        """
        if self.world_size == 1:
            yield
            return
        _ = self.device  # the process group comes with it
        is_main = (self.local_process_index if local else self.process_index) == 0
        with distributed.first(is_main, desc):
            yield

    # Sizes and schedules

    @property
    def train_batch_size(self) -> int:
        """Returns the number of examples in a training batch of this process."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """Returns the number of examples in an evaluation batch of this process."""
        return self.per_device_eval_batch_size

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Returns the number of warm-up steps out of `num_training_steps`."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)

    def get_process_log_level(self) -> int:
        """Returns the log level of this process, from `log_level` or `log_level_replica`."""
        from transformers.utils import logging as transformers_logging

        name = self.log_level if self.should_log else self.log_level_replica
        level = transformers_logging.get_log_levels_dict().get(name, -1)
        return transformers_logging.get_verbosity() if level == -1 else level

    # Conversion to data

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values, with tokens replaced by their names and without unset old arguments."""
        old = DeprecatedArguments.__dataclass_fields__
        values = {
            field.name: value
            for field in dataclasses.fields(self)
            if field.init and ((value := getattr(self, field.name)) != field.default or field.name not in old)
        }
        return {name: f"<{name.upper()}>" if name.endswith("_token") else _plain(v) for name, v in values.items()}

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2, default=str)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Returns the fields as bool, int, float or str only, as hyper-parameter trackers require."""
        values = {
            **self.to_dict(),
            "train_batch_size": self.train_batch_size,
            "eval_batch_size": self.eval_batch_size,
        }
        return {name: v if type(v) in (bool, int, float, str) else str(v) for name, v in values.items()}

    def __str__(self) -> str:
        fields = "".join(f"{name}={value!r},\n" for name, value in sorted(self.to_dict().items()))
        return f"{type(self).__name__}(\n{fields})"

    __repr__ = __str__


def _declared(kind: type) -> dict[str, Declaration]:
    """Returns the fields of the class of this package that `kind` is or extends: scripts check their own."""
    return declarations(next(each for each in kind.__mro__ if each.__module__.startswith(f"{__package__}.")))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value) if isinstance(value, str) else value
