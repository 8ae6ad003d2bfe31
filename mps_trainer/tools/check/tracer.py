"""Traces the operators that run inside `with Tracer()` and judges each as mps would take it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from ...devices.probes import fallback_when_torch_loaded
from ...utils.nested import map_tensors, tensors_in
from .as_mps import names_of_mps_accepted
from .autocast import autocast_of_mps
from .composites import composite_key, instead_on_mps, misplaced, numbers_to_tensors, waits_for_device
from .coverage_report import CoverageReport
from .phases import Phases
from .reads import HostCalls
from .recorder import REFUSED_ON_MPS, Recorder, half
from .residency import Residency, named_tensors
from .source import SourceLine, current_line
from .table import Support, operator_table

_FLOAT64_ON_CPU = {"aten::bincount"}


class Tracer:
    """Records what the code inside `with tracer:` would do on mps, on any machine.

    May be entered any number of times, for one step or a whole training; `report()` covers all of it. The code runs
    on the CPU and computes what it computes without the trace, up to rounding where mps takes another kernel.

    Which tensors are on the device is known from the code: parameters and inputs of modules, what `.to(device)` or
    `device=` gives, and all that is computed from those are; what `.cpu()` gives or a factory without `device=` is
    not. Operators and reads of host tensors cost the device nothing and are left out.

    Args:
        fallback: whether PYTORCH_ENABLE_MPS_FALLBACK counts as on; None: as it was when torch was imported.
        unknown_on_device: the answer for tensors made before the trace and not met by any of the rules above. None:
            they count as being on the host, but a call that takes them beside others on the device is no error.
    """

    def __init__(self, *, fallback: bool | None = None, unknown_on_device: bool | None = None) -> None:
        self.residency = Residency(unknown_on_device)
        self.recorder = Recorder(
            operator_table(), bool(fallback_when_torch_loaded()) if fallback is None else fallback
        )
        self.phases = Phases(self._enter_module, self._before_step)
        self.is_paused = False
        self.reads_are_free = False  # within what has been recorded as a read, or checks values on the CPU alone
        self.singular_values_only = False  # within functions that want no singular vectors
        self.float64_is_of_the_cpu = False  # within functions that count in float64 on the CPU alone
        self.factory_on_device: bool | None = None  # within a Python call of a factory: whether it names a device
        self._expanding: list[Any] = []
        # The lines of forward calls, by the number of their autograd node.
        self._lines: dict[int, SourceLine | None] = {}
        self._stack: contextlib.ExitStack | None = None
        self._mode = _Operators(self)

    def __enter__(self) -> Tracer:
        if self._stack is not None:
            raise RuntimeError("This Tracer is recording already. Leave its `with` block before entering it again.")
        with contextlib.ExitStack() as stack:
            # mps does not have the attention that the CPU takes
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(autocast_of_mps())
            stack.enter_context(names_of_mps_accepted(self.read))
            stack.enter_context(self.phases)
            stack.enter_context(HostCalls(self))
            stack.enter_context(self._mode)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
        self._lines.clear()

    def report(self) -> CoverageReport:
        """Returns the findings so far."""
        return self.recorder.report()

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Assigns operators inside to the phase `name`, except operators of backward passes."""
        return self.phases.named(name)

    def on_device(self, *values: Any) -> None:
        """Marks the tensors in `values` (modules, dictionaries, lists) as being on the device."""
        self.residency.put((tensor for _, tensor in named_tensors(values)), True)

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Records nothing inside."""
        return self.having(is_paused=True)

    @contextlib.contextmanager
    def having(self, **values: bool) -> Iterator[None]:
        """Sets these attributes of the tracer inside."""
        outer = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(outer)

    def read(self, what: str) -> None:
        """Records that the host waits for the device here."""
        if not self.reads_are_free:
            self.recorder.read(what, self.phases.now(), self._line())

    def refuse(self, what: str, remedy: str) -> None:
        """Records that a call raises on mps."""
        self.recorder.refused(what, remedy, self.phases.now(), self._line())

    # One operator

    def run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Runs one operator and records it if the device would have run it."""
        if self.is_paused or func.namespace == "profiler":
            return func(*args, **kwargs)
        given, args = args, numbers_to_tensors(func, args)
        tensors = tensors_in((args, kwargs))
        if any(tensor.is_meta for tensor in tensors):
            return func(*args, **kwargs)
        if not self._on_device(func, tensors, kwargs):
            result = func(*args, **kwargs)
            self.residency.put(tensors_in(result), False)
            return result
        if func._schema.name == "aten::copy_":
            if not self.residency.on_device(tensors[0]):
                self.read("copy to a host tensor")
                return func(*args, **kwargs)
            blocks = not kwargs.get("non_blocking", args[2:] == (True,))
            if blocks and isinstance(given[1], torch.Tensor) and not self.residency.on_device(given[1]):
                self.read("copy of a host tensor")
        name, phase, line = func.name(), self.phases.now(), self._line()
        on_device = [tensor for tensor in tensors if self.residency.on_device(tensor)]
        support = self.recorder.table.support(name, self.recorder.fallback)
        is_composite = support is Support.COMPOSITE
        instead = instead_on_mps(func, args, kwargs, self.singular_values_only)
        if support is Support.NATIVE or instead is not None:
            self._check_devices(func, args, kwargs)
        self.recorder.product(name, phase, tensors, line)
        for each in (*([name] if instead is None or is_composite else []), *(instead or ())):
            self.recorder.operator(each, phase, on_device, line)
        has_parts = is_composite and instead is None and func not in self._expanding
        key = composite_key(func, on_device) if has_parts else None
        with contextlib.ExitStack() as stack:
            runs = is_composite or support is Support.NATIVE
            if runs and waits_for_device(func, args, kwargs, self.residency.on_device):
                self.read(name)
                stack.enter_context(self.having(reads_are_free=True))  # reads of its parts are the same wait
            try:
                result = func(*args, **kwargs) if key is None else self._run_parts(key, func, args, kwargs)
            except NotImplementedError as error:
                result = self._run_in_float32(error, func, args, kwargs)
        results = tensors_in(result)
        if tensors and not any(tensor.dtype in REFUSED_ON_MPS for tensor in on_device):
            self._check_results(func, results, line)
        self.residency.put(results, True)
        return result

    def _on_device(self, func: Any, tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> bool:
        if func._schema.name == "aten::lift_fresh" and self.factory_on_device is not None:
            return self.factory_on_device
        if tensors:
            return any(self.residency.on_device(tensor) for tensor in tensors)
        if not func._schema.returns or "meta" in str(kwargs.get("device")):
            return False
        return self.factory_on_device is not False  # called by torch itself: on the device of its tensors

    def _run_parts(self, key: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Runs a composite operator by the kernel of `key`, which mps would use, to trace its parts."""
        self._expanding.append(func)
        try:
            with self._mode:
                return func._op_dk(key, *args, **kwargs)
        except NotImplementedError:  # the kernel does not take tensors of the CPU
            self.recorder.note(f"{func.name()} could not be decomposed: its parts were not checked.")
            return func(*args, **kwargs)
        finally:
            self._expanding.pop()

    def _run_in_float32(self, error: NotImplementedError, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Runs an operator without a kernel for whole numbers, and records it; raises any other error again."""
        tensors = tensors_in((args, kwargs))
        if "not implemented for" not in str(error) or any(tensor.is_floating_point() for tensor in tensors):
            raise error
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        self.refuse(
            f"{func.name()} of {dtype}", "Cast the tensor first: .float(). Kernels take no whole numbers here."
        )
        return func(*map_tensors(args, torch.Tensor.float), **map_tensors(kwargs, torch.Tensor.float))

    def _check_devices(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """Records tensors of the host beside others on the device, each once."""
        for name, tensor in misplaced(func, args, kwargs, self.residency.on_host):
            self.refuse(
                f"{name} of {func.name()}, a tensor of shape {list(tensor.shape)}, is on the CPU",
                "Move it to the device of the other tensors: .to(tensor.device).",
            )
            self.on_device(tensor)

    def _check_results(self, func: Any, results: list[torch.Tensor], line: SourceLine | None) -> None:
        """Records the operator that creates a float64 tensor from others, but not the operators that use it."""
        made = next((tensor for tensor in results if tensor.dtype in REFUSED_ON_MPS), None)
        if (
            made is None
            or self._expanding
            or self.float64_is_of_the_cpu
            or func.name() in _FLOAT64_ON_CPU
            or self.phases.in_backward_of_torch()
        ):
            return  # torch's own kernels and gradients that add up in float64 do so on the CPU alone
        self.recorder.dtype(f"result of {func.name()}", made, f"Ask for {half(made.dtype)} here.", line)

    def _line(self) -> SourceLine | None:
        """Returns the line that called the operator; for a gradient, the line of its forward operator."""
        if not self.phases.in_backward_of_torch():
            line = current_line()
            # The node of this call, if it has one, is the last that was made.
            self._lines.setdefault(torch._C._autograd._get_sequence_nr() - 1, line)
            return line
        node = torch._C._current_autograd_node()
        return (None if node is None else self._lines.get(node._sequence_nr())) or current_line()

    # Modules

    def _enter_module(self, module: torch.nn.Module, inputs: dict[str, Any], training: bool) -> None:
        """Records a module that no other module called: the model, or a loss."""
        if self.is_paused:
            return
        if self.residency.default is False:
            self._check_placement(module, inputs)
        with self.paused():
            if self.residency.default is not False:
                self.on_device(module, inputs)
            self.recorder.module(module)
            named = list(named_tensors(inputs))
            for name, tensor in named:
                self.recorder.column(name, f" for {type(module).__name__}", tensor)
            if training and next(module.parameters(), None) is not None:
                self.recorder.batch(named)

    def _check_placement(self, module: torch.nn.Module, inputs: dict[str, Any]) -> None:
        """Records a module that is on the host and gets inputs on the device."""
        if not any(self.residency.on_device(tensor) for _, tensor in named_tensors(inputs)):
            return
        on_host = [name for name, tensor in named_tensors(module) if tensor.dim() and self.residency.on_host(tensor)]
        if on_host:
            name, more = type(module).__name__, f" and {len(on_host) - 1} more" if len(on_host) > 1 else ""
            self.refuse(
                f"{name} with {on_host[0]}{more} is on the CPU, and its inputs on mps",
                f"Move the {name} to the device before training: .to(args.device).",
            )
            self.on_device(module)

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Marks parameters and optimizer states as being on the device, except most counters of steps."""
        self._lines.clear()  # the backward pass is over
        for group in optimizer.param_groups:
            counts_on_device = bool(group.get("fused") or group.get("capturable"))
            self.on_device(group["params"])
            for parameter in group["params"]:
                for name, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        self.residency.put([value], name != "step" or counts_on_device)


class _Operators(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if any(has_own_dispatch(kind) for kind in types):
            return NotImplemented  # the tensor subclass first says what it is made of
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **(kwargs or {}))
        return self.tracer.run(func, args, kwargs or {})


def has_own_dispatch(kind: type) -> bool:
    """Returns True for a tensor subclass that handles operators itself."""
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not None and own is not torch._C._disabled_torch_dispatch_impl and kind is not torch.Tensor


def trace(fn: Callable, *args: Any, fallback: bool | None = None, **kwargs: Any) -> CoverageReport:
    """Runs `fn(*args, **kwargs)` once under a trace and returns the report.

    Tensors made before the call count as being on the device; see `Tracer` for those made by it. What `fn` raises is
    not caught.
    """
    tracer = Tracer(fallback=fallback, unknown_on_device=True)
    tracer.on_device(args, kwargs)
    with tracer:
        fn(*args, **kwargs)
    return tracer.report()
