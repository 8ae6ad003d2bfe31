"""Contains the measured peers: each module trains a `Task` in the usual way of its library."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Peer:
    """A way to train: the module with its `train`, the packages that it needs, and what tables call it."""

    module: str
    needs: tuple[str, ...]
    label: str

    def why_left_out(self) -> str | None:
        """None where the peer can run here, otherwise why it cannot."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{' and '.join(missing)} not installed" if missing else None

    def train(self) -> Callable[[Any, Any], None]:
        """`train(model, task)`: trains the model in place, for one pass over the task's examples."""
        return importlib.import_module(f"benchmarks.peers.{self.module}").train


PEERS = {
    "bare": Peer("bare", (), "bare PyTorch loop"),
    "bare-fused": Peer("bare_fused", (), "bare PyTorch loop, fused AdamW"),
    "bare-mlx": Peer("bare", ("mlx",), "bare PyTorch loop over MLX"),
    "ours": Peer("mps_trainer", (), "mps_trainer"),
    "transformers": Peer("transformers_trainer", ("accelerate",), "transformers Trainer"),
    "accelerate": Peer("accelerate_loop", ("accelerate",), "Accelerate loop"),
    "lightning": Peer("lightning_module", ("lightning",), "Lightning"),
}


def left_out(names: list[str]) -> dict[str, str]:
    """Those of `names` that cannot run here, and why."""
    reasons = {name: PEERS[name].why_left_out() for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}
