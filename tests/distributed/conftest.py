"""Runs the scenarios in several processes, once for all tests."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

from tests import run_python
from tests.conftest import assert_same_weights
from tests.distributed.scenarios import SCENARIOS, STEPS

WITH_FOUR = (
    "the_end_of_an_epoch_is_uneven",
    "the_end_of_an_epoch_is_one_example",
    "evaluation",
    "from_two_processes",
    "sharded_by_size",
    "sharded_from_two_processes",
)


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`run_once("name", module, *words)` runs a module once for all test processes, into a folder of that name."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def run(name: str, module: str, *words: object, **variables: str) -> Path:
        folder = shared / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                folder.mkdir()
                done = run_python("-m", f"tests.distributed.{module}", folder, *words, **variables)
                assert done.returncode == 0, done.stdout + done.stderr
        return folder

    return run


@pytest.fixture(scope="session")
def made_by(run_once: Callable[..., Path]) -> Callable[..., Callable[[str], list[dict[str, Any]]]]:
    """`made_by(2)(name)` is what each of two processes made of the scenario `name`, over gloo on the CPU.

    All scenarios are made at once, because a process takes seconds to start.
    """

    def made(size: int, *names: str, **settings: str) -> Callable[[str], list[dict[str, Any]]]:
        folder = run_once("-".join(["made-by", str(size), *settings.values()]), "worker", size, *names, **settings)
        return lambda name: [load(folder / f"{name}-{rank}.pt") for rank in range(size)]

    return made


@pytest.fixture
def told_by(run_once: Callable[..., Path]) -> Callable[..., list[str]]:
    """`told_by(case)` is what each process of a case of `differing.py` wrote."""
    folder = run_once("differing", "differing")
    return lambda case, end="": [path.read_text() for path in sorted(folder.glob(f"{case}-[0-9]{end}"))]


@pytest.fixture
def made_by_four(made_by: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[dict[str, Any]]]:
    checkpoint = os.path.join(made_by(2)("checkpoints")[0]["folder"], "checkpoint-8")
    monkeypatch.setenv("FROM_CHECKPOINT", checkpoint)
    monkeypatch.setenv("FROM_SHARDS", made_by(2)("sharded_checkpoints")[0]["folder"])
    return made_by(4, *WITH_FOUR)


@pytest.fixture
def alone(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    return lambda name: SCENARIOS[name](str(tmp_path / name))


def assert_trained_alike(one: dict[str, Any], several: list[dict[str, Any]], steps: int = STEPS) -> None:
    """Sums of another order round differently; 1e-5 is far below what a step changes."""
    for made in several:
        assert made["steps"] == one["steps"] == steps
        for key in ("losses", "norms", "epochs", "evaluations"):
            np.testing.assert_allclose(made[key], one[key], atol=1e-5, rtol=0)
        assert made["weights"].keys() == one["weights"].keys()
        for name, tensor in one["weights"].items():
            torch.testing.assert_close(made["weights"][name], tensor, atol=1e-5, rtol=0)
        assert_same_weights(made["weights"], several[0]["weights"])


def assert_evaluated_alike(several: list[dict[str, Any]], one: dict[str, Any]) -> None:
    for made in several:
        assert made.keys() == one.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(made[key], value)


def assert_resumed_exactly(whole: dict[str, Any], again: dict[str, Any]) -> None:
    assert_same_weights(again["weights"], whole["weights"])
    for key in ("losses", "norms", "epochs", "evaluations", "steps", "best"):
        assert again[key] == whole[key]


def load(path: Path) -> dict[str, Any]:
    came = torch.load(path, weights_only=False)
    assert "error" not in came, came["error"]
    return came
