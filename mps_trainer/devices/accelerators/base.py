"""Defines the methods of every accelerator, named as in Lightning, and parses requests for devices."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import MisconfigurationException
from ...utils.text import counted
from ..facts import MachineFacts, gather_facts
from ..probes import FALLBACK, unreadable_switch

if TYPE_CHECKING:
    import torch

# The ways in which devices may be asked for: "auto", 1, "1", -1 (all of them), [0], "0,1".
Devices = int | str | list[int] | tuple[int, ...] | None


@dataclass(frozen=True)
class Obstacle:
    """The cause that keeps a machine from using an accelerator, and the remedy.

    Both are clauses without a capital or a full stop, so that they fit into a sentence. `repairable` says that the
    hardware is in this machine and software stands in its way. `name` is the name of the doctor's finding about it, or
    of the device in a `Decision`.
    """

    why: str
    remedy: str
    repairable: bool = False
    name: str = ""


class Accelerator:
    """One kind of hardware. This package needs no instance: every method is a class method.

    `why_not`, `count`, `precisions` and `choose_devices` are pure functions of their arguments. `is_available`,
    `auto_device_count` and `parse_devices` are the same answers for the machine at hand, under Lightning's names.
    """

    kind: ClassVar[str]
    label: ClassVar[str]  # names one of them in a sentence
    backends: ClassVar[tuple[str, ...]]  # torch.distributed may have them; the preferred one is first
    indexed: ClassVar[bool] = True  # False where a machine has one of them, without a number
    formats: ClassVar[tuple[str, ...]]  # tensors there have these, of fp32, fp16, bf16 and fp64
    visible_variable: ClassVar[str] = ""  # the environment variable that chooses among several

    @classmethod
    def name(cls) -> str:
        """Returns the name that `accelerator=` takes, which is torch's device type."""
        return cls.kind

    @classmethod
    def why_not(cls, facts: MachineFacts) -> Obstacle | None:
        """Returns the obstacle to training on this kind of device, or None."""
        raise NotImplementedError

    @classmethod
    def count(cls, facts: MachineFacts) -> int:
        """Returns the number of usable devices of this kind, by default 1 or none."""
        return 0 if cls.why_not(facts) else 1

    @classmethod
    def precisions(cls, facts: MachineFacts) -> tuple[str, ...]:
        """Returns the formats of floating-point tensors there; () if this machine cannot use the device."""
        return () if cls.why_not(facts) else cls.formats

    @classmethod
    def scales_gradients(cls, torch_version: str) -> bool:
        """Returns True if `torch.amp.GradScaler`, which float16 needs, works there."""
        return True

    @classmethod
    def divides_gradients(cls, torch_version: str) -> bool:
        """Returns True if fused AdamW uses `grad_scale` and `found_inf`; otherwise a scaler has to look itself."""
        return True

    @classmethod
    def precision_advice(cls, cpu_bfloat16: bool | None) -> str | None:
        """Returns a clause about the fastest number format; None where nothing was measured.

        `cpu_bfloat16` says whether the processor multiplies bfloat16; None if unknown.
        """
        return None

    @classmethod
    def choose_devices(cls, devices: Devices, count: int) -> Sequence[int]:
        """Returns the indices that `devices` asks for, out of `count`. Raises MisconfigurationException for others."""
        asked = read_devices(devices)
        if asked in (0, []):
            raise no_devices(cls.kind, devices)
        wanted: Any = count if asked in ("auto", -1) else asked
        enough = wanted <= count if isinstance(wanted, int) else max(wanted) < count
        if not count or not enough:
            raise MisconfigurationException(
                f"devices={devices!r} was requested with accelerator={cls.kind!r}, and this machine has "
                f"{counted(count, f'usable {cls.label}')}. {_ask_for_at_most(count)}"
            )
        return list(range(wanted)) if isinstance(wanted, int) else wanted

    @classmethod
    def is_available(cls) -> bool:
        """Returns True if this machine can train on this kind of device."""
        return cls.why_not(gather_facts()) is None

    @classmethod
    def auto_device_count(cls) -> int:
        """Returns the number of devices that "auto" stands for on this machine."""
        return cls.count(gather_facts())

    @classmethod
    def parse_devices(cls, devices: Devices) -> Any:
        """Returns what `devices` asks for on this machine. Raises MisconfigurationException if it is not there."""
        return cls.choose_devices(devices, cls.auto_device_count())

    @classmethod
    def get_parallel_devices(cls, devices: Devices) -> list[torch.device]:
        """Returns one torch.device for each index; a list of indices is taken as parsed already."""
        import torch

        indices = list(devices) if isinstance(devices, (list, tuple)) else cls.parse_devices(devices)
        return [torch.device(cls.kind, index) for index in indices]

    @classmethod
    def memory(cls, device: Any) -> dict[str, int]:
        """Returns the bytes in live tensors, those that this process holds, and all there are; {} on the CPU.

        The host keeps them: nothing waits for the device.
        """
        return {}

    @classmethod
    def get_device_stats(cls, device: Any = None) -> dict[str, Any]:
        """Returns figures of a device and of the machine: `_bytes` are bytes, `_percent` go from 0 to 100."""
        return {**cls.memory(device), **host_stats()}

    @classmethod
    def setup(cls, trainer: Any) -> None:
        """Does nothing; Lightning's Trainer calls it before its model goes to the device."""

    @classmethod
    def setup_device(cls, device: torch.device) -> None:
        """Makes `device` this process's own. Raises MisconfigurationException if it is of another kind."""
        if device.type != cls.kind:
            raise MisconfigurationException(
                f"{cls.__name__} cannot set up the device {device}: it is for {cls.kind} devices. "
                f"Take the class whose name() is {device.type!r}."
            )

    @classmethod
    def torch_module(cls) -> Any:
        """Returns torch's module for this kind of device, or None if torch finds no such device."""
        import torch

        module = getattr(torch, cls.kind)
        return module if module.is_available() else None

    @classmethod
    def teardown(cls) -> None:
        """Releases the memory that torch keeps on the device beyond live tensors."""
        if (module := cls.torch_module()) is not None:
            module.empty_cache()


def read_devices(devices: Devices) -> int | str | list[int]:
    """Returns `devices`, in any of Lightning's spellings, as "auto", a number (-1: all) or a list of indices.

    Raises MisconfigurationException for other values, and for indices below 0 or given twice.
    """
    if devices is None or devices == "auto":
        return "auto"
    value: Any = devices
    with contextlib.suppress(ValueError):  # a text without numbers stays one
        if isinstance(value, str):
            numbers = [int(part) for part in value.split(",") if part.strip()]
            value = numbers if "," in value else next(iter(numbers), 0)
    is_list = isinstance(value, (list, tuple))
    indices = list(value) if is_list else [value]
    if any(type(each) is not int or each < (0 if is_list else -1) for each in indices):
        raise MisconfigurationException(
            f"devices={devices!r} was not understood. Accepted are 'auto', a number such as 1, -1 for all devices, "
            f"and a list of indices such as [0]."
        )
    if len(set(indices)) < len(indices):
        raise MisconfigurationException(f"devices={devices!r} names a device twice. Name each device once.")
    return indices if is_list else value


def torch_missing(facts: MachineFacts) -> Obstacle:
    """Returns the obstacle that a missing torch is for every kind of device."""
    error = facts.torch_error or ""
    switch = facts.environment.get(FALLBACK)
    if facts.system == "Darwin" and unreadable_switch(switch):
        cause = f"{FALLBACK}={switch!r} is not a whole number, and with it torch fails to load on a Mac"
        return Obstacle(cause, f"unset {FALLBACK}, or set it to 1", True, "unreadable-switch")
    if not error or error.startswith("ModuleNotFoundError: No module named 'torch'"):
        remedy = "install torch: python -m pip install torch"
        return Obstacle("torch is not installed in this Python", remedy, True, "torch")
    if "incompatible architecture" in error:
        remedy = (
            f"reinstall torch for the architecture of this Python, {facts.machine}: "
            "python -m pip install --force-reinstall --no-cache-dir torch"
        )
    elif error.startswith("AttributeError"):
        remedy = (
            "see where it comes from: `python -c 'import torch; print(torch)'`; if your own file or folder named "
            "torch hides the real one, rename it"
        )
    else:
        remedy = "reinstall torch: python -m pip install --force-reinstall torch"
    return Obstacle(f"torch is installed but cannot be imported ({error})", remedy, True, "torch")


def host_stats() -> dict[str, Any]:
    """Returns the memory of this process and this machine, and the load of all processors since the last call."""
    import psutil  # `import mps_trainer` does without it

    swap = psutil.swap_memory()
    return {
        "process_rss_bytes": psutil.Process().memory_info().rss,
        "memory_available_bytes": psutil.virtual_memory().available,
        "swap_used_bytes": swap.used,
        "swap_percent": swap.percent,
        "cpu_percent": psutil.cpu_percent(),
    }


def no_devices(kind: str, devices: Devices) -> MisconfigurationException:
    instead = "" if kind == "cpu" else ", or take accelerator='cpu' to train on the CPU"
    return MisconfigurationException(
        f"devices={devices!r} asks for no device at all on {kind}. Leave devices at 'auto'{instead}."
    )


def _ask_for_at_most(count: int) -> str:
    if not count:
        return "Take accelerator='auto' to train on what this machine has."
    return "Ask for devices=1." if count == 1 else f"Ask for {count} or fewer, with indices from 0 to {count - 1}."
