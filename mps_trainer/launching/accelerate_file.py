"""Finds Accelerate's settings file and converts the settings that have an equivalent here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..utils.home import in_home
from ..utils.text import shown
from .settings import PRECISIONS, InForce, LaunchSettings, checked

# A file with one of these is Accelerate's.
MARKS = ("compute_environment", "distributed_type")

_DEVICES = {"NO": None, "MPS": "mps", "MULTI_CPU": "cpu", "MULTI_GPU": "cuda", "MULTI_XPU": "xpu"}
_SAME = {"use_cpu", "mixed_precision", "num_processes", "fp16", *MARKS}

_COMPILE = "give the script --torch_compile, or TrainingArguments torch_compile=True"
_ONE_MACHINE = "it starts processes on one machine"
# Why another key is left out, and which values of it change nothing by being left out.
_OTHERS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "deepspeed_config": ("there is no DeepSpeed on mps, and this Trainer trains without it", lambda v: not v),
    "fsdp_config": ("give the script --fsdp and --fsdp_config instead", lambda v: not v),
    "megatron_lm_config": ("there is no Megatron-LM here", lambda v: not v),
    "parallelism_config": ("this Trainer does not split a model over devices", lambda v: not v),
    "fp8_config": ("there is no fp8 here; mixed_precision takes fp16 or bf16", lambda v: not v),
    "mpirun_config": ("processes are started by torchrun, not by mpirun", lambda v: not v),
    "dynamo_config": (_COMPILE, lambda v: not v),
    "dynamo_backend": (_COMPILE, lambda v: v == "NO"),
    "gpu_ids": ("set CUDA_VISIBLE_DEVICES to choose GPUs", lambda v: v in (None, "all")),
    "num_machines": (_ONE_MACHINE, lambda v: v in (None, 1)),
    "machine_rank": (_ONE_MACHINE, lambda v: v in (None, 0)),
    "main_process_ip": (_ONE_MACHINE, lambda v: v is None),
    "main_process_port": (f"{_ONE_MACHINE} and finds a free port", lambda v: v is None),
    "rdzv_backend": (_ONE_MACHINE, lambda v: v in (None, "static", "c10d")),
    "same_network": (_ONE_MACHINE, lambda v: True),
    "main_training_function": ("it is for TPUs and notebooks", lambda v: v in (None, "main")),
    "downcast_bf16": ("it is for TPUs", lambda v: v in (None, False, "no")),
    "debug": ("set ACCELERATE_DEBUG_MODE=true for it", lambda v: not v),
    "enable_cpu_affinity": ("it is for NVIDIA GPUs on machines of several sockets", lambda v: not v),
}
_TPU = ("it is for TPUs", lambda value: not value)
_UNKNOWN = ("mps_trainer does not know it", lambda value: value is None)


def is_accelerates(values: Mapping[Any, Any]) -> bool:
    return any(mark in values for mark in MARKS)


def accelerate_file(environ: Mapping[str, str]) -> Path | None:
    """Returns the path of Accelerate's settings: the YAML file, or the older JSON file where that is the only one.

    None for a user without a home folder.
    """
    home = environ.get("HF_HOME") or str(Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    if (folder := in_home(Path(home) / "accelerate")) is None:
        return None
    new, old = folder / "default_config.yaml", folder / "default_config.json"
    return new if os.path.isfile(new) or not os.path.isfile(old) else old


def take_over(values: Mapping[Any, Any], where: str) -> InForce:
    """Reads the settings that Accelerate has written.

    Raises:
        MisconfigurationException: for a value of the wrong type under a key that is taken over.
    """
    place = values.get("compute_environment", "LOCAL_MACHINE")
    if place != "LOCAL_MACHINE":
        left = {"compute_environment": f"{_word(place)} is a different machine"}
        return InForce(left=left, is_accelerates=True)
    left = {}
    kind = values.get("distributed_type") or "NO"  # YAML makes false of the bare word
    if known := isinstance(kind, str) and kind in _DEVICES:
        device = _DEVICES[str(kind)]
    else:
        device, left["distributed_type"] = None, f"{_word(kind)} is not one of {', '.join(_DEVICES)}"
    if _use_cpu(values, where):
        device = "cpu"
    for name, value in values.items():
        why, changes_nothing = _OTHERS.get(name, _TPU if _word(name).startswith("tpu_") else _UNKNOWN)
        if name not in _SAME and not changes_nothing(value):
            left[_word(name)] = why
    precision = values.get("mixed_precision", "fp16" if values.get("fp16") is True else None)
    if isinstance(precision, str) and precision.lower() == "fp8":
        precision, left["mixed_precision"] = None, f"fp8 is not one of {', '.join(PRECISIONS)}"
    count = values.get("num_processes")
    if count == -1:  # not set
        count = None
    if not known and count not in (None, 1):
        count, left["num_processes"] = None, f"{_word(count)} belongs to that distributed_type"
    settings = LaunchSettings(
        device=device,
        mixed_precision=checked("mixed_precision", precision, where),
        num_processes=checked("num_processes", count, where),
    )
    return InForce(settings, left=left, is_accelerates=True)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _use_cpu(values: Mapping[Any, Any], where: str) -> bool:
    asked = values.get("use_cpu")
    if asked not in (None, True, False):
        raise MisconfigurationException(f"{where} has use_cpu: {shown(asked)}. use_cpu is true or false.")
    return bool(asked)
