"""Finds, reads and writes the settings file, and converts Accelerate's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..arguments.model import PRECISIONS
from ..arguments.readers import read_flag
from ..errors import MisconfigurationException
from ..utils.bounded_file import read_bytes
from ..utils.home import in_home, named
from ..utils.size import MOST_ITEMS, is_too_large
from ..utils.text import sentence, shown
from .settings import DEFAULTS, Settings, read_settings

LARGEST = 50_000  # bytes; settings are a few hundred
HEADER = "# Settings of `mps-trainer launch`, written by `mps-trainer config`. Flags go before them.\n"

# A file with one of these is Accelerate's.
MARKS = ("compute_environment", "distributed_type")

_DEVICES = {"NO": None, "MPS": "mps", "MULTI_CPU": "cpu", "MULTI_GPU": "cuda", "MULTI_XPU": "xpu"}
_CONVERTED = {"use_cpu", "mixed_precision", "num_processes", "same_network", *MARKS}
# These mean the same as an empty value.
_NEUTRAL = {
    "gpu_ids": "all",
    "num_machines": 1,
    "rdzv_backend": "static",
    "main_training_function": "main",
    "downcast_bf16": "no",
}
# Other keys have no equivalent.
_INSTEAD = {
    "fsdp_config": "give the script --fsdp and --fsdp_config instead",
    "dynamo_config": "give the script --torch_compile, or TrainingArguments torch_compile=True",
    "gpu_ids": "set CUDA_VISIBLE_DEVICES to choose GPUs",
    "num_machines": "it starts processes on this machine, or on the machines of --hosts",
    "main_process_port": "it finds a free port",
    "debug": "set ACCELERATE_DEBUG_MODE=true for it",
}


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, their file (None for none), and the keys of the file that are ignored, each with the reason."""

    settings: Settings = field(default_factory=dict)
    path: Path | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)
    is_accelerates: bool = False


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Returns config.yaml in `mps_trainer` under $XDG_CONFIG_HOME or `~/.config`; None without a home folder."""
    return in_home(Path(environ.get("XDG_CONFIG_HOME") or "~/.config") / "mps_trainer" / "config.yaml")


def accelerate_file(environ: Mapping[str, str]) -> Path | None:
    """Returns the path of Accelerate's settings, None for a user without a home folder.

    Accelerate's own function would import torch.
    """
    home = environ.get("HF_HOME") or str(Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return in_home(Path(home) / "accelerate" / "default_config.yaml")


def in_force(named_file: str | None, environ: Mapping[str, str]) -> LoadedSettings:
    """Returns the settings of the named file, else of the user's, else of Accelerate's, else none.

    Raises:
        MisconfigurationException: if the one that was named is not there, or one cannot be read or understood.
    """
    if named_file is not None:
        return load(named("--config_file", named_file))
    return load_first(user_file(environ), accelerate_file(environ))


def load_first(*paths: Path | None) -> LoadedSettings:
    """Returns the settings of the first file that exists, else none."""
    return next((load(path) for path in paths if path is not None and os.path.exists(path)), LoadedSettings())


def load(path: Path) -> LoadedSettings:
    """Reads a file of settings, ours or Accelerate's. Raises MisconfigurationException where it cannot be read."""
    import yaml  # --help does without it

    try:
        text = read_bytes(path, LARGEST).decode()
        if is_too_large(yaml.compose(text, Loader=yaml.SafeLoader)):  # before any of its items is built
            raise ValueError(f"its aliases expand to more than {MOST_ITEMS} items")
        values = yaml.safe_load(text) or {}
        if not isinstance(values, Mapping):
            raise ValueError(f"it has a {type(values).__name__} instead of lines such as `device: cpu`")
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise MisconfigurationException(
            f"{path} cannot be read: {sentence(error)} Correct or remove it, name another file, or write one "
            "with `mps-trainer config`."
        ) from error
    if any(mark in values for mark in MARKS):
        settings, ignored = convert(values, str(path))
        return LoadedSettings(settings, path, ignored, is_accelerates=True)
    return LoadedSettings(read_settings(values, str(path)), path)


def convert(values: Mapping[Any, Any], source: str) -> tuple[Settings, dict[str, str]]:
    """Converts the settings that Accelerate has written. Returns also the keys that are ignored, with reasons.

    Raises:
        MisconfigurationException: for a value of the wrong type under a key that is converted.
    """
    place = values.get("compute_environment", "LOCAL_MACHINE")
    if place != "LOCAL_MACHINE":
        return {}, {"compute_environment": f"{_word(place)} is a different machine"}
    ignored = {}
    found = {"device": None, "mixed_precision": values.get("mixed_precision"), "num_processes": None}
    count = values.get("num_processes")
    kind = values.get("distributed_type") or "NO"  # YAML makes false of the bare word
    is_known = isinstance(kind, str) and kind in _DEVICES
    if is_known:
        found["device"] = _DEVICES[str(kind)]
        found["num_processes"] = None if count == -1 else count  # Accelerate writes -1 where none is set
    else:
        ignored["distributed_type"] = f"{_word(kind)} is not one of {', '.join(_DEVICES)}"
    for name, value in values.items():
        if name not in _CONVERTED and value and value != _NEUTRAL.get(name):
            ignored[_word(name)] = _INSTEAD.get(name, "it has no equivalent here")
    if not is_known and count not in (None, -1, 1):
        ignored["num_processes"] = f"{_word(count)} belongs to that distributed_type"
    if found["mixed_precision"] in ("fp8", "FP8"):
        found["mixed_precision"], ignored["mixed_precision"] = None, f"fp8 is not one of {', '.join(PRECISIONS)}"
    if read_flag(f"{source}: use_cpu", values.get("use_cpu") or False):
        found["device"] = "cpu"
    return read_settings(found, source), ignored


def _word(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def load_target(path: Path) -> LoadedSettings:
    """Returns the settings in the file that will be written, none if it does not exist yet.

    Raises:
        MisconfigurationException: if there is something else that must not be overwritten.
    """
    if path.is_fifo() or path.is_char_device():
        raise MisconfigurationException(f"{path} is a pipe or a device. Name a file with --config_file.")
    loaded = load_first(path)
    if loaded.is_accelerates:
        raise MisconfigurationException(
            f"{path} belongs to Accelerate. Without --config_file, the settings go to a file of their own."
        )
    return loaded


def write(settings: Settings, path: Path) -> None:
    """Writes all settings to `path` and creates its folder. An existing file is replaced in one step.

    Raises:
        MisconfigurationException: if it cannot be written; nothing is left behind then.
    """
    import yaml

    target = path.resolve()  # a rename would replace a link instead of its target
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(HEADER + yaml.safe_dump({**DEFAULTS, **settings}, sort_keys=False), encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise MisconfigurationException(
            f"{path} cannot be written: {error.strerror}. Name another file with --config_file."
        ) from error
