"""What several processes have made of the scenarios, once for all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from tests.distributed.launch import run


@pytest.fixture(scope="session")
def made_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Callable[[str], list[dict[str, Any]]]]:
    """`made_by(2)(name)` is what each of two processes made of the scenario `name`.

    All scenarios are made at once, because a process takes seconds to start; test processes share what came of them.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(size: int, *names: str) -> Callable[[str], list[dict[str, Any]]]:
        folder = Path(shared, f"made-by-{size}")
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                folder.mkdir()
                run(size, "-m", "tests.distributed.worker", str(folder), *names)
        return lambda name: [load(folder / f"{name}-{rank}.pt") for rank in range(size)]

    return made


def load(path: Path) -> dict[str, Any]:
    came = torch.load(path, weights_only=False)
    assert "error" not in came, came["error"]
    return came
