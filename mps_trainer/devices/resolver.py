"""Chooses one device from a request and the facts of the machine, with the reason for every candidate.

Pure: no I/O and no torch call, so a decision for any machine can be computed, and tested, on any other.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import DeviceUnavailableError, MisconfigurationException
from ..utils.text import counted
from .accelerators import ACCELERATORS, Accelerator, Devices, MPSAccelerator, Obstacle
from .accelerators.base import read_devices, torch_missing
from .facts import FALLBACK, TORCH_DEVICE, MachineFacts, system_line

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DeviceRequest:
    """The device that the user asks for.

    Args:
        accelerator: "auto" (the first usable of mps, cuda, xpu, cpu), "gpu" (the same without cpu), or one of "mps",
            "cuda", "xpu", "cpu".
        devices: "auto", a number, -1 for all, or a list of indices. One process trains on one device.
        use_cpu: train on the CPU, even if the machine has a GPU; goes before `accelerator`.
        ddp_backend: backend of torch.distributed; None leaves it to the device.
    """

    accelerator: str = "auto"
    devices: Devices = "auto"
    use_cpu: bool = False
    ddp_backend: str | None = None


@dataclass(frozen=True)
class Decision:
    """The device of this process and the reasons. `str()` is for people, `to_dict()` for machines."""

    type: str  # torch's name: "mps", "cuda", "xpu" or "cpu"
    index: int | None  # None for mps and cpu, which have one device
    reason: str
    rejected: tuple[Obstacle, ...] = ()  # one for each other device
    notes: tuple[str, ...] = ()  # the user should know these before training
    idle: str | None = None  # why this Mac's GPU stays idle and what to do, in one line
    world_size: int = 1  # torchrun's numbers as used; one process without it
    rank: int = 0
    local_rank: int = 0
    restarts: int = 0  # torchrun has started the processes again so often
    meeting_point: str | None = None  # "tcp://host:port" under srun and mlx.launch; None: torchrun's variables say it

    @property
    def name(self) -> str:
        """Returns the device as torch spells it: "mps", "cuda:0", "cpu"."""
        return self.type if self.index is None else f"{self.type}:{self.index}"

    @property
    def device(self) -> torch.device:
        """Returns the torch.device; torch is imported here and not before."""
        import torch

        return torch.device(self.name)

    def __str__(self) -> str:
        lines = [f"Training runs on {self.name}: {self.reason}."]
        if self.world_size > 1:
            lines.append(f"  process {self.rank} of {self.world_size} (local rank {self.local_rank})")
        lines += [f"  not {other.name}: {other.why}; {other.remedy}." for other in self.rejected]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns every field and the device's name, in types that JSON has."""
        return {"device": self.name, **dataclasses.asdict(self)}


def resolve(request: DeviceRequest, facts: MachineFacts) -> Decision:
    """Chooses the device for this process.

    In this order: `use_cpu` or accelerator="cpu"; an accelerator asked for by name, in the request or by Accelerate's
    variable ACCELERATE_TORCH_DEVICE; mps; cuda; xpu; cpu.

    Raises DeviceUnavailableError if an accelerator asked for by name cannot run here, with the cause and its remedy,
    and MisconfigurationException when the request contradicts itself, the device or the launcher.
    """
    choice = _choose(request, facts)
    chosen = ACCELERATORS[choice.name]
    devices = request.devices
    if choice.by_variable and chosen.indexed and devices == "auto" and (facts.world_size or 1) == 1:
        _, index = _device_of_environment(facts)
        devices = devices if index is None else [index]
    _refuse_backend(chosen, request.ddp_backend)
    _refuse_processes(chosen, request.ddp_backend, facts)
    return Decision(
        type=choice.name,
        index=_index(chosen, devices, facts),
        reason=choice.reason,
        rejected=tuple(_rejected(name, choice, facts) for name in ACCELERATORS if name != choice.name),
        notes=_notes(choice, facts),
        idle=_idle_mac(choice, facts),
        world_size=facts.world_size or 1,
        rank=facts.rank or 0,
        local_rank=facts.local_rank or 0,
        restarts=facts.torchelastic_restart_count or 0,
        meeting_point=f"tcp://{facts.master_addr}:{facts.master_port}" if facts.slurm or facts.mlx_launch else None,
    )


def _refuse_backend(chosen: type[Accelerator], backend: str | None) -> None:
    """Raises MisconfigurationException if `backend`, a `ddp_backend`, cannot be used on the chosen device."""
    if backend is None or backend in chosen.backends:
        return
    needs = " or ".join(name for name, kind in ACCELERATORS.items() if backend in kind.backends)
    why = f"it needs {needs}" if needs else "no accelerator of this package uses it"
    usable = f"{'one of ' * (len(chosen.backends) > 1)}{', '.join(map(repr, chosen.backends))}"
    raise MisconfigurationException(
        f"ddp_backend={backend!r} cannot be used on {chosen.kind}: {why}. Take {usable}, or leave ddp_backend out."
    )


def _refuse_processes(chosen: type[Accelerator], backend: str | None, facts: MachineFacts) -> None:
    """Raises MisconfigurationException if the processes that a launcher started cannot train on the chosen device."""
    processes = facts.world_size or 1
    if processes == 1:
        return
    if "mlx" in (backend, *chosen.backends[:1]) and not facts.mlx:
        need, remedy = f"ddp_backend={backend!r} needs MLX", "leave ddp_backend out"
        if backend is None:
            need, remedy = f"on {chosen.kind} they exchange gradients over MLX", "train on the CPU with use_cpu=True"
        raise MisconfigurationException(
            f"The launcher started {processes} processes, and {need}, which is not installed. On each machine: python "
            "-m pip install 'mps_trainer[several-macs]'. Or start the script with plain python to train in one "
            f"process, or {remedy}."
        )
    if facts.local_rank is None and chosen.indexed:
        raise MisconfigurationException(
            f"WORLD_SIZE is {processes} and LOCAL_RANK is not set, so this process cannot tell which "
            f"{chosen.label} is its own. Start with torchrun, which sets both, or unset WORLD_SIZE."
        )


@dataclass(frozen=True)
class _Choice:
    name: str
    reason: str
    others: str  # why an available candidate was passed over
    condition: str = ""  # a clause: what must change before accelerator= can choose another
    by_order: bool = False  # the kind was not asked for; it was the first usable
    by_variable: bool = False  # ACCELERATE_TORCH_DEVICE names it


def _choose(request: DeviceRequest, facts: MachineFacts) -> _Choice:
    asked = _asked_accelerator(request)
    if request.use_cpu:
        return _cpu(facts, asked, "use_cpu=True asks for the CPU", "without use_cpu, ")
    if asked == "cpu":
        return _cpu(facts, asked, "accelerator='cpu' asks for the CPU")
    if is_true(value := facts.environment.get("ACCELERATE_USE_CPU")):
        why = f"the environment variable ACCELERATE_USE_CPU={value}, which `launch --cpu` sets, asks for the CPU"
        return _cpu(facts, asked, why, "without ACCELERATE_USE_CPU, ")
    origin = f"accelerator={asked!r}"
    if asked in ("auto", "gpu"):
        named, _ = _device_of_environment(facts)
        if named is None:
            return _first_usable(asked, facts)
        asked, origin = named, f"{TORCH_DEVICE}={facts.environment[TORCH_DEVICE]}"
    if asked == "cpu":
        return _cpu(facts, asked, f"the environment variable {origin} asks for the CPU", f"without {TORCH_DEVICE}, ")
    obstacle = ACCELERATORS[asked].why_not(facts)
    if obstacle is not None:
        raise DeviceUnavailableError(
            f"{origin} was requested, and it cannot run here: {obstacle.why}. What to do: {obstacle.remedy}.",
            obstacle.why,
            obstacle.remedy,
        )
    reason = f"{origin} asks for it, and it works here"
    return _Choice(asked, reason, f"{origin} was requested", by_variable=origin.startswith(TORCH_DEVICE))


def _device_of_environment(facts: MachineFacts) -> tuple[str | None, int | None]:
    """Returns the kind and the index of the device in ACCELERATE_TORCH_DEVICE, each None if it is not given.

    Raises:
        MisconfigurationException: for a device that this package does not know.
    """
    value = facts.environment.get(TORCH_DEVICE, "").strip().lower()
    kind, _, index = value.partition(":")
    if kind not in (*ACCELERATORS, "") or not (index.isdecimal() or value == kind):
        raise MisconfigurationException(
            f"{TORCH_DEVICE}={value!r} in the environment is not a device that this package knows. Set it to one of "
            f"{', '.join(ACCELERATORS)}, or unset it."
        )
    return kind or None, int(index) if index else None


def _asked_accelerator(request: DeviceRequest) -> str:
    asked = request.accelerator
    accepted = ("auto", *ACCELERATORS, "gpu")
    if not isinstance(asked, str) or asked.lower() not in accepted:
        raise MisconfigurationException(
            f"accelerator={asked!r} is not an accelerator this package knows. "
            f"Take one of {', '.join(map(repr, accepted))}."
        )
    return asked.lower()


def is_true(value: str | None) -> bool:
    """Returns True if Accelerate reads the value of a switch as true."""
    return value is not None and value.strip().lower() in ("1", "true", "t", "yes", "y", "on")


def _cpu(facts: MachineFacts, asked: str, why: str, condition: str = "") -> _Choice:
    if ACCELERATORS["cpu"].why_not(facts) is not None:
        raise _nothing_trains(facts)
    set_aside = "" if asked in ("auto", "cpu") else f", so the request for accelerator={asked!r} was ignored"
    return _Choice("cpu", why + set_aside, why, condition)


def _first_usable(asked: str, facts: MachineFacts) -> _Choice:
    names = [name for name in ACCELERATORS if asked == "auto" or name != "cpu"]
    for name in names:
        if ACCELERATORS[name].why_not(facts) is None:
            reason = f"accelerator={asked!r} takes the first usable of {', '.join(names)}"
            if name == "mps":
                version = f"{system_line(vars(facts))}, torch {facts.torch_version}"
                reason += f", and an allocation on mps worked ({version})"
            return _Choice(name, reason, f"{name} comes first", by_order=True)
    if asked == "auto":
        raise _nothing_trains(facts)
    obstacles = {name: ACCELERATORS[name].why_not(facts) for name in names}
    causes = "; ".join(f"{name}: {obstacle.why}" for name, obstacle in obstacles.items() if obstacle)
    remedies = "; ".join(f"{name}: {obstacle.remedy}" for name, obstacle in obstacles.items() if obstacle)
    raise DeviceUnavailableError(
        f"accelerator='gpu' was requested, and no GPU can be used here. {causes}. "
        f"What to do: {remedies}; or take accelerator='cpu'.",
        causes,
        remedies,
    )


def _nothing_trains(facts: MachineFacts) -> DeviceUnavailableError:
    """Returns the error for a missing torch; where Rosetta emulates Python, its remedy is a native Python."""
    missing = torch_missing(facts)
    emulated = MPSAccelerator.why_not(facts) if facts.rosetta else None
    remedy = emulated.remedy if emulated else missing.remedy
    cause = f"{missing.why}, and {emulated.why}" if emulated else missing.why
    return DeviceUnavailableError(f"Nothing can be trained here: {cause}. What to do: {remedy}.", cause, remedy)


def _rejected(name: str, choice: _Choice, facts: MachineFacts) -> Obstacle:
    passed_over = Obstacle(f"available, but {choice.others}", f"{choice.condition}accelerator={name!r} chooses it")
    return dataclasses.replace(ACCELERATORS[name].why_not(facts) or passed_over, name=name)


def _index(chosen: type[Accelerator], devices: Devices, facts: MachineFacts) -> int | None:
    """Returns the index of this process's device; None for a kind of which a machine has one."""
    asked = read_devices(devices)
    count = chosen.count(facts)
    wanted = chosen.choose_devices(devices, count)
    one_each = asked in ("auto", 1)  # every process takes the one of its local rank
    processes = facts.world_size or 1
    local_size = processes if facts.local_world_size is None else min(facts.local_world_size, processes)
    if not one_each and len(wanted) != local_size:
        raise MisconfigurationException(
            f"devices={devices!r} asks for {counted(len(wanted), 'device')} on {chosen.kind}, one for each process, "
            f"but {counted(local_size, 'process', 'processes')} started on this machine. Start as many: "
            f"torchrun --nproc_per_node {len(wanted)} SCRIPT, or ask for devices=1."
        )
    if not chosen.indexed:
        return None
    rank = facts.local_rank or 0
    if one_each and rank >= count:
        raise MisconfigurationException(
            f"LOCAL_RANK is {rank} (counted from 0), and this machine has "
            f"{counted(count, f'usable {chosen.label}')}. Start no more processes than that: {_at_most(count, facts)}."
        )
    return rank if one_each else wanted[rank if local_size > 1 else 0]


def _at_most(count: int, facts: MachineFacts) -> str:
    if not facts.slurm:
        return f"torchrun --nproc_per_node {count}"
    return f"srun --ntasks-per-node={count}, or show each all GPUs of its node: --gpus-per-node, not --gpus-per-task"


def _idle_mac(choice: _Choice, facts: MachineFacts) -> str | None:
    obstacle = MPSAccelerator.why_not(facts)
    if choice.name != "cpu" or not choice.by_order or obstacle is None or not obstacle.repairable:
        return None
    remedy = obstacle.remedy[0].upper() + obstacle.remedy[1:]
    return f"Training on cpu, not mps: {obstacle.why}. {remedy}."


def _notes(choice: _Choice, facts: MachineFacts) -> tuple[str, ...]:
    notes = []
    if choice.name == "mps" and facts.fallback_set_too_late:
        notes.append(
            f"{FALLBACK} was set after torch was imported and has no effect, because torch reads it once, when its "
            f"library is loaded. Set it in the shell, or at the top of the script before the first import of torch."
        )
    if choice.name == "mps" and facts.mps_simulated:
        notes.append("this mps device is simulated on the CPU; its speed says nothing about a Mac.")
    if choice.name == "mps" and facts.rosetta:
        notes.append("this Python is an x86_64 build that Rosetta emulates; a native arm64 Python is faster.")
    if choice.name == "mps" and (facts.local_world_size or 1) > 1 and not facts.mps_simulated:
        notes.append(
            f"{facts.local_world_size} processes share the one GPU of this Mac. One process with larger batches is "
            "faster and needs less memory."
        )
    idle = ACCELERATORS[choice.name].count(facts) - 1
    if ACCELERATORS[choice.name].indexed and (facts.world_size or 1) == 1 and idle > 0:
        notes.append(
            f"{idle} more {choice.name} device{'s' if idle > 1 else ''} would stay idle; "
            f"torchrun --nproc_per_node {idle + 1} SCRIPT trains on all of them."
        )
    return tuple(notes)
