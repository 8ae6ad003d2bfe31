"""Finds Accelerate's settings file and converts the settings that have an equivalent here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..utils.home import in_home
from ..utils.text import shown
from .settings import PRECISIONS, Settings, read_settings

# A file with one of these is Accelerate's.
MARKS = ("compute_environment", "distributed_type")

_DEVICES = {"NO": None, "MPS": "mps", "MULTI_CPU": "cpu", "MULTI_GPU": "cuda", "MULTI_XPU": "xpu"}
_CONVERTED = {"use_cpu", "mixed_precision", "num_processes", "fp16", "same_network", *MARKS}

_COMPILE = "give the script --torch_compile, or TrainingArguments torch_compile=True"
_ONE_MACHINE = "it starts processes on this machine, or on those of --hosts"
# Why another key is ignored, and the values that mean the same as an empty one: they change nothing.
_IGNORED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "deepspeed_config": ("there is no DeepSpeed on mps, and this Trainer trains without it", ()),
    "fsdp_config": ("give the script --fsdp and --fsdp_config instead", ()),
    "megatron_lm_config": ("there is no Megatron-LM here", ()),
    "parallelism_config": ("this Trainer does not split a model over devices", ()),
    "fp8_config": ("there is no fp8 here; mixed_precision takes fp16 or bf16", ()),
    "mpirun_config": ("processes are started by torchrun, not by mpirun", ()),
    "dynamo_config": (_COMPILE, ()),
    "dynamo_backend": (_COMPILE, ("NO",)),
    "gpu_ids": ("set CUDA_VISIBLE_DEVICES to choose GPUs", ("all",)),
    "num_machines": (_ONE_MACHINE, (1,)),
    "machine_rank": (_ONE_MACHINE, ()),
    "main_process_ip": (_ONE_MACHINE, ()),
    "main_process_port": ("it finds a free port", ()),
    "rdzv_backend": (_ONE_MACHINE, ("static", "c10d")),
    "main_training_function": ("it is for TPUs and notebooks", ("main",)),
    "downcast_bf16": ("it is for TPUs", ("no",)),
    "debug": ("set ACCELERATE_DEBUG_MODE=true for it", ()),
    "enable_cpu_affinity": ("it is for NVIDIA GPUs on machines of several sockets", ()),
}


def accelerate_file(environ: Mapping[str, str]) -> Path | None:
    """Returns the path of Accelerate's settings: the YAML file, or the older JSON file where that is the only one.

    None for a user without a home folder. Accelerate's own function would import torch.
    """
    home = environ.get("HF_HOME") or str(Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    if (folder := in_home(Path(home) / "accelerate")) is None:
        return None
    new, old = folder / "default_config.yaml", folder / "default_config.json"
    return new if os.path.isfile(new) or not os.path.isfile(old) else old


def convert(values: Mapping[Any, Any], source: str) -> tuple[Settings, dict[str, str]]:
    """Converts the settings that Accelerate has written. Returns also the keys that are ignored, with reasons.

    Raises:
        MisconfigurationException: for a value of the wrong type under a key that is converted.
    """
    place = values.get("compute_environment", "LOCAL_MACHINE")
    if place != "LOCAL_MACHINE":
        return {}, {"compute_environment": f"{_word(place)} is a different machine"}
    use_cpu = values.get("use_cpu")
    if use_cpu not in (None, True, False):
        raise MisconfigurationException(f"{source} has use_cpu: {shown(use_cpu)}. use_cpu is true or false.")
    ignored = {}
    kind = values.get("distributed_type") or "NO"  # YAML makes false of the bare word
    is_known = isinstance(kind, str) and kind in _DEVICES
    if not is_known:
        ignored["distributed_type"] = f"{_word(kind)} is not one of {', '.join(_DEVICES)}"
    for name, value in values.items():
        default = "it is for TPUs" if _word(name).startswith("tpu_") else "mps_trainer does not know it"
        why, harmless = _IGNORED.get(name, (default, ()))
        if name not in _CONVERTED and value and value not in harmless:
            ignored[_word(name)] = why
    precision = values.get("mixed_precision", "fp16" if values.get("fp16") is True else None)
    if isinstance(precision, str) and precision.lower() == "fp8":
        precision, ignored["mixed_precision"] = None, f"fp8 is not one of {', '.join(PRECISIONS)}"
    count = values.get("num_processes")
    if count == -1:  # Accelerate writes it where none is set
        count = None
    if not is_known and count not in (None, 1):
        count, ignored["num_processes"] = None, f"{_word(count)} belongs to that distributed_type"
    device = "cpu" if use_cpu else _DEVICES[str(kind)] if is_known else None
    found = {"device": device, "mixed_precision": precision, "num_processes": count}
    return read_settings(found, source), ignored


def _word(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)
