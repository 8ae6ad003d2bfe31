"""Checks that the processes of a run have the same data."""

from __future__ import annotations

import socket
from typing import Any

from transformers.trainer_utils import has_length

from ..errors import MisconfigurationException
from .processes import Processes


def check_same_data(trainer: Any, processes: Processes) -> None:
    """Raises MisconfigurationException if datasets that the processes share have different sizes in them.

    Where other code makes the loaders, each process may have its own data.
    """
    if not processes.is_distributed:
        return
    found, overrides = {}, trainer._mt_overrides
    for name, is_own in (
        ("train_dataset", overrides.get_train_dataloader),
        ("eval_dataset", overrides.get_eval_dataloader),
    ):
        dataset = getattr(trainer, name)
        found[name] = len(dataset) if not is_own and has_length(dataset) else None
    everybodys = processes.gather((socket.gethostname(), found))
    for name in found:
        if len({sizes[name] for _, sizes in everybodys}) > 1:
            said = ", ".join(f"{sizes[name]} in process {i} on {host}" for i, (host, sizes) in enumerate(everybodys))
            raise MisconfigurationException(
                f"The {name} differs in size among the processes: {said}. Give all of them the same data."
            )
