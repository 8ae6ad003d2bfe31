"""Activates and deactivates the simulated device in this process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ...devices import facts
from ...errors import MisconfigurationException
from ...reports import fallbacks
from ..check.mps_kernels import compiles_graphs, reads
from ..check.source import SourceLine, current_line
from ..check.table import always_falls_back, operator_table
from .build import load_extension
from .counted_fallbacks import CountedFallbacks
from .cuda import hide_cuda
from .memory_limit import DEFAULT_MEMORY, high_watermark, parse_bytes
from .simulation_report import OperatorCalls, Place, SimulationReport
from .visible import set_visible

_extension: ModuleType | None = None
_current: SimulatedMPS | None = None
_own_watch = fallbacks.FallbackWatch


class SimulatedMPS:
    """Represents the active simulated device with its counts and settings.

    Made by `simulated_mps()` and `activate()`, not by hand.
    """

    def __init__(self, extension: ModuleType, memory: int, fallback: bool) -> None:
        self._extension = extension
        self.memory = memory
        self.fallback = fallback
        self._lines: Counter[tuple[str, str, SourceLine | None]] = Counter()
        self._warned: set[str] = set()

    def counters(self) -> dict[str, Any]:
        """Returns the raw counts: blocking_reads, synchronizations, host_to_device(_bytes), device_to_host(_bytes),
        bytes_live, bytes_peak, bytes_held, and operators: {name: (calls, compiled graphs, whether it fell back)}."""
        counters = self._extension.counters()
        version = operator_table().torch_version
        counters["operators"] = {
            name: (calls, shapes if compiles_graphs(name, version) else 0, fell_back)
            for name, (calls, shapes, fell_back) in counters["operators"].items()
        }
        return counters

    def report(self) -> SimulationReport:
        """Returns the counts since the device was switched on, or since `reset()`."""
        counters = self.counters()
        operators = [OperatorCalls(name, *numbers) for name, numbers in counters.pop("operators").items()]
        places = [
            Place(kind, operator, count, *((where.file, where.line, where.text) if where else (None, None, None)))
            for (kind, operator, where), count in self._lines.most_common()
        ]
        return SimulationReport(
            torch_version=operator_table().torch_version,
            fallback=self.fallback,
            memory=self.memory,
            operators=tuple(sorted(operators, key=lambda operator: (-operator.calls, operator.name))),
            places=tuple(places),
            **counters,
        )

    def reset(self) -> None:
        """Counts from zero again; the peak of memory starts at the live bytes."""
        self._lines.clear()
        self._warned.clear()
        self._extension.reset()

    def _note(self, kind: str, operator: str) -> None:
        line = current_line()
        self._lines[kind, operator, line] += 1
        if kind == "fallback" and operator not in self._warned:
            self._warned.add(operator)
            warnings.warn_explicit(
                f"The operator '{operator}' is not currently supported on the MPS backend and will fall back to run "
                f"on the CPU. Every call copies its tensors to the CPU and the results back, and waits for both.",
                UserWarning,
                *((line.file, line.line) if line else ("<no line of Python, as in backward>", 0)),
            )


@contextlib.contextmanager
def simulated_mps(
    memory: int | str = DEFAULT_MEMORY, fallback: bool | None = None, same_draws_as_cpu: bool = False
) -> Iterator[SimulatedMPS]:
    """Activates the simulated `mps` device inside the block.

    Args:
        memory: what Metal would recommend as the maximum, in bytes or as "16GB"; an allocation past it fails with "MPS
            backend out of memory". A Mac's recommendation is about two thirds of its memory up to 32 GB and three
            quarters from 36 GB on. `torch.mps.set_per_process_memory_fraction` and
            PYTORCH_MPS_HIGH_WATERMARK_RATIO scale it.
        fallback: whether operators without an MPS kernel run on the CPU instead of failing. Default: as
            PYTORCH_ENABLE_MPS_FALLBACK stood when torch was imported.
        same_draws_as_cpu: random numbers come from the CPU's generator, so that a run can be compared with one on the
            CPU digit by digit. Hardware has a generator of its own, and so has the device by default.

    Raises SimulatorUnavailableError where it cannot be simulated, and MisconfigurationException for a bad amount of
    memory or inside another such block.
    """
    global _current
    device = activate(memory, fallback, same_draws_as_cpu)
    try:
        yield device
    finally:
        _current = None
        _watch_fallbacks_by(_own_watch)
        device._extension.set_listener(None)
        device._extension.set_active(False)
        set_visible(False)


def activate(
    memory: int | str = DEFAULT_MEMORY, fallback: bool | None = None, same_draws_as_cpu: bool = False
) -> SimulatedMPS:
    """Activates the device for the rest of the process, with the settings of `simulated_mps()`."""
    global _current
    size, watermark = parse_bytes(memory), high_watermark()
    if _current is not None:
        raise MisconfigurationException(
            "The simulated mps device is already active, by an enclosing simulated_mps() or by activate(). Use that "
            "one."
        )
    extension = _install()
    if fallback is None:
        fallback = bool(facts.gather_facts().fallback_when_torch_loaded)
    _current = SimulatedMPS(extension, size, fallback)
    extension.set_memory(size, watermark)
    extension.set_fallback(fallback)
    extension.set_shared_generator(same_draws_as_cpu)
    extension.set_listener(_current._note)
    _current.reset()
    extension.set_active(True)
    set_visible(True)
    _watch_fallbacks_by(functools.partial(CountedFallbacks, _current.counters))
    return _current


def _watch_fallbacks_by(watch: Callable[[], Any]) -> None:
    fallbacks.FallbackWatch = watch  # type: ignore[assignment, misc]


def _install() -> ModuleType:
    """Returns the compiled device, registered with torch once per process."""
    global _extension
    if _extension is None:
        table = operator_table()
        hide_cuda()
        extension = load_extension()
        extension.install()
        version = table.torch_version
        read = [(name, read.argument, read.numbers_only) for name, read in reads(version).items()]
        extension.register_kernels(sorted(table.native), sorted(always_falls_back(version) - table.native), read)
        atexit.register(extension.stop_autograd_thread)
        atexit.register(extension.set_listener, None)  # the last registered runs first
        _extension = extension
    return _extension
