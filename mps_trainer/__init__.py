"""mps_trainer: the Trainer for people who fine-tune models on a Mac.

Public names are loaded on first use, so `import mps_trainer` loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 10):  # noqa: UP036  # in a clone, where pip has checked nothing: macOS has 3.9
    _line = (
        f"mps_trainer needs Python 3.10 or later, and {sys.executable} is {sys.version.split()[0]}. Install a newer "
        "one, from python.org or with `brew install python@3.12`, and make a virtual environment with it: "
        "python3.12 -m venv .venv."
    )
    # `python -m mps_trainer` imports this file first: no traceback there
    raise SystemExit(_line) if sys.argv[:1] == ["-m"] else ImportError(_line)

# Imported now and not on first use: it has to be there when torch is loaded, to see how the fallback switch stood.
from .devices import probes as _probes  # noqa: F401
from .version import __version__

if TYPE_CHECKING:
    from .callbacks.device_stats import DeviceStatsMonitor
    from .data.buckets import BucketBatchSampler, LengthBuckets
    from .data.padding import PadToBucket
    from .devices import Decision, DeviceRequest, MachineFacts, MPSAccelerator, gather_facts, resolve
    from .errors import DeviceUnavailableError, MisconfigurationException, NonFiniteLossError
    from .model.mlx_loading import load_mlx_model
    from .trainer import Trainer
    from .trainer_seq2seq import Seq2SeqTrainer
    from .training_args import TrainingArguments
    from .training_args_seq2seq import Seq2SeqTrainingArguments

_EXPORTS = {
    "BucketBatchSampler": ".data.buckets",
    "Decision": ".devices",
    "DeviceRequest": ".devices",
    "DeviceStatsMonitor": ".callbacks.device_stats",
    "DeviceUnavailableError": ".errors",
    "LengthBuckets": ".data.buckets",
    "MPSAccelerator": ".devices",
    "MachineFacts": ".devices",
    "MisconfigurationException": ".errors",
    "NonFiniteLossError": ".errors",
    "PadToBucket": ".data.padding",
    "Seq2SeqTrainer": ".trainer_seq2seq",
    "Seq2SeqTrainingArguments": ".training_args_seq2seq",
    "Trainer": ".trainer",
    "TrainingArguments": ".training_args",
    "gather_facts": ".devices",
    "load_mlx_model": ".model.mlx_loading",
    "resolve": ".devices",
}

__all__ = [
    "BucketBatchSampler",
    "Decision",
    "DeviceRequest",
    "DeviceStatsMonitor",
    "DeviceUnavailableError",
    "LengthBuckets",
    "MPSAccelerator",
    "MachineFacts",
    "MisconfigurationException",
    "NonFiniteLossError",
    "PadToBucket",
    "Seq2SeqTrainer",
    "Seq2SeqTrainingArguments",
    "Trainer",
    "TrainingArguments",
    "__version__",
    "gather_facts",
    "load_mlx_model",
    "resolve",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
