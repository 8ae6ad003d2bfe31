"""Makes Accelerate's state of the processes, which libraries ask that do not ask the Trainer."""

from __future__ import annotations

import os
from unittest import mock

import torch
from accelerate.state import AcceleratorState, PartialState


def shared_state(device: torch.device, processes: int) -> PartialState:
    """Returns Accelerate's `PartialState` for `device`, a new one if earlier arguments made another.

    The process group has to exist by now.
    """
    with mock.patch.dict(os.environ):  # on mps Accelerate sets PYTORCH_ENABLE_MPS_FALLBACK, for children as well
        state = PartialState(cpu=device.type == "cpu")
        if state.device.type != device.type or state.num_processes != processes:
            AcceleratorState._reset_state(reset_partial_state=True)
            state = PartialState(cpu=device.type == "cpu")
    state.device = device
    return state
