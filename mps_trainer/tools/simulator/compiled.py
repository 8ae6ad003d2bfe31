"""Counts the kernels that `torch.compile` generates for a step on mps, on a machine without Metal.

Inductor writes its Metal kernels as text, which works on any machine; only Apple's compiler and a GPU can run them. On
the simulated device each generated kernel is replaced by one that fills its results with zeros and is counted, and
what Inductor leaves to torch's own kernels runs and is counted as ever.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import logging
import re
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from .session import SimulatedMPS, simulated_mps

# An M3 has 10. Inductor only asks for it to compare kernels by time, which it does not do for mps.
_GPU_CORES = 10


@dataclass(frozen=True)
class CompiledStep:
    """Counts of one forward and backward pass.

    Args:
        eager: kernels that the device runs without torch.compile.
        launches: calls of generated Metal kernels.
        kernels: how many different ones were generated.
        left: calls of torch's own kernels in the compiled pass, by operator.
        graphs: how many graphs the forward pass was compiled as.
        graph_breaks: why there is more than one, a line for each reason.
        failures: what Inductor could not compile.
        ended: False if the compiled pass broke off, so that the counts say nothing.
    """

    eager: int
    launches: int
    kernels: int
    left: dict[str, int]
    graphs: int
    graph_breaks: tuple[str, ...]
    failures: tuple[str, ...]
    ended: bool = True

    @property
    def total(self) -> int:
        """Kernels that the device runs with torch.compile."""
        return self.launches + sum(self.left.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns every field and `total` for JSON."""
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        own = sum(self.left.values())
        most = sorted(self.left.items(), key=lambda item: -item[1])[:5]
        named = f" ({', '.join(f'{name} {calls}' for name, calls in most)})" if most else ""
        lines = [
            f"torch.compile on mps, forward and backward: {self.total} kernels, {self.eager} without it.",
            f"  generated in Metal: {self.launches} launches of {self.kernels} kernels",
            f"  torch's own: {own} launches{named}",
            f"  graphs: {self.graphs}",
        ]
        if not self.ended:
            lines = [f"torch.compile on mps: the step failed; it has {self.eager} kernels without torch.compile."]
        lines += [
            *(f"  graph break: {reason}" for reason in self.graph_breaks),
            *(f"  not compiled: {failure}" for failure in self.failures),
            "  The generated code has not been compiled by Apple's compiler, nor run.",
        ]
        return "\n".join(lines)


def compile_step(trainer: Any) -> CompiledStep:
    """Counts the kernels of the loss of a Trainer's first batch and of its gradients, with and without torch.compile.

    The model is copied. `trainer` is one of this package or of transformers.

    Raises:
        SimulatorUnavailableError: where the device cannot be simulated.
    """
    batch = next(iter(trainer.get_train_dataloader()))
    args = trainer.args
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    with simulated_mps() as device:
        model = copy.deepcopy(trainer.model).to("mps").train()
        batch = tree_map_only(torch.Tensor, lambda tensor: tensor.to("mps"), dict(batch))

        def loss(model: nn.Module) -> torch.Tensor:
            with torch.autocast("mps", dtype, enabled=dtype is not None):
                return trainer.compute_loss(model, dict(batch))

        return count_kernels(model, loss, device)


def count_kernels(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor], device: SimulatedMPS) -> CompiledStep:
    """Counts the kernels of `loss(model)` and its gradients on the device, with and without torch.compile."""

    phase = ""

    def step(model: Any) -> None:
        nonlocal phase
        device.reset()
        model.zero_grad()
        phase = "forward"
        value = loss(model)
        phase = "backward"
        value.backward()

    for _ in range(2):  # the first makes what is kept
        step(model)
    eager = device.report().operator_calls

    compiler, ended = _Compiler(), False
    with compiler.stubbed():
        try:
            compiled = torch.compile(model, backend=compiler.compile)
            step(compiled)
            compiler.launches = 0
            step(compiled)
            ended = True
        except Exception as error:  # gradients are compiled when they are first asked for
            compiler.failures.append(f"{phase}: {reason_of(error)}")
        counters = torch._dynamo.utils.counters
        graphs = counters["stats"]["unique_graphs"]
        breaks = tuple(reason.strip().splitlines()[0] for reason in counters["graph_break"])
    left = {operator.name: operator.calls for operator in device.report().operators}
    failures = tuple(compiler.failures)
    return CompiledStep(eager, compiler.launches, compiler.kernels, left, graphs, breaks, failures, ended)


class _Compiler:
    """Runs Inductor with a stand-in for the Metal compiler and runtime."""

    def __init__(self) -> None:
        self.kernels = 0
        self.launches = 0
        self.failures: list[str] = []

    def compile(self, graph: Any, inputs: Any) -> Any:
        """Compiles a graph as a backend of torch.compile. One that Inductor cannot compile runs as it is."""
        from torch._inductor.compile_fx import compile_fx

        try:
            return compile_fx(graph, inputs)
        except Exception as error:
            self.failures.append(f"forward: {reason_of(error)}")
            return graph.forward

    @contextlib.contextmanager
    def stubbed(self) -> Iterator[None]:
        """Lets Inductor compile for an absent GPU inside, and clears its caches at the end."""
        import torch._dynamo
        from torch._inductor.utils import fresh_cache

        log = logging.getLogger("torch._inductor.utils")  # it would warn that the GPU is small
        level = log.level
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        with contextlib.ExitStack() as stack:
            stack.enter_context(fresh_cache())
            stack.enter_context(mock.patch.object(torch.mps, "compile_shader", self._library))
            cores = mock.Mock(return_value=_GPU_CORES)
            stack.enter_context(mock.patch.object(torch.backends.mps, "get_core_count", cores, create=True))
            stack.callback(torch._dynamo.reset)
            stack.callback(log.setLevel, level)
            log.setLevel(logging.ERROR)
            yield

    def _library(self, source: str) -> Any:
        """Replaces torch.mps.compile_shader."""
        library = types.SimpleNamespace()
        for name, written in kernels_in(source).items():
            self.kernels += 1
            setattr(library, name, self._kernel(written))
        return library

    def _kernel(self, written: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **kwargs: Any) -> None:
            self.launches += 1
            for position in written:
                tensor = args[position]
                # Zero is a valid index into anything. Written past torch, which would count it.
                ctypes.memset(tensor.data_ptr(), 0, tensor.numel() * tensor.element_size())

        return run


_WRITTEN = re.compile(r"\s*device \S+ (?:in_)?out_ptr")
_KERNEL = re.compile(r"kernel void (\w+)\((.*?)\)\s*\{", re.DOTALL)


def kernels_in(source: str) -> dict[str, tuple[int, ...]]:
    """Returns the kernels in a Metal source, each with the positions of the arguments that it writes."""
    return {
        name: tuple(i for i, argument in enumerate(arguments.split(",")) if _WRITTEN.match(argument))
        for name, arguments in _KERNEL.findall(source)
    }


def reason_of(error: BaseException) -> str:
    """Returns the cause of an error of torch.compile's in one line: its type, its message, and where it was raised."""
    while (cause := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines:
        target = next((line.removeprefix("target: ") for line in lines if line.startswith("target: ")), "")
        return f"{type(error).__name__}: {lines[0]}" + (f" ({target})" if target else "")
    frames = traceback.extract_tb(error.__traceback__)
    # A method of Inductor's raises, without a message, for what Metal lacks.
    return f"{type(error).__name__}" + (f" in {frames[-1].name}" if frames else "")
