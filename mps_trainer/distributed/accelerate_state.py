"""Accelerate's own state, for libraries that ask Accelerate and not the Trainer about processes."""

from __future__ import annotations

from typing import Any

import torch


def shared_state(device: torch.device, processes: int, mixed_precision: str | None = None) -> Any:
    """Returns Accelerate's `PartialState` for `device`; None if Accelerate is not installed.

    With `mixed_precision`, makes its `AcceleratorState` too, as an `Accelerator` would. A state of earlier arguments
    that says otherwise is made anew. The process group has to exist by now.
    """
    try:
        from accelerate.state import AcceleratorState, PartialState
        from accelerate.utils import TorchDynamoPlugin
    except ImportError:
        return None
    state = PartialState(cpu=device.type == "cpu")
    if state.device.type != device.type or state.num_processes != processes:
        AcceleratorState._reset_state(reset_partial_state=True)
        state = PartialState(cpu=device.type == "cpu")
    state.device = device
    if mixed_precision is not None:
        if AcceleratorState._shared_state.get("_mixed_precision", mixed_precision) != mixed_precision:
            AcceleratorState._reset_state()
        plugin = TorchDynamoPlugin(backend="no")
        AcceleratorState(mixed_precision=mixed_precision, dynamo_plugin=plugin, _from_accelerator=True)
    return state
