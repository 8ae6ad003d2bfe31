"""Fixtures for tests that load models and data sets by their name on the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .repositories import DATASET, MODEL, Splits, made_up_cola, read_mrpc, sentences, write_bert, write_glue
from .server import StandInHub

# Whatever the developer's shell says about the hub, its caches or a proxy must not reach the tests.
_FOREIGN_VARIABLES = ("hf_", "hugging", "transformers_", "http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass(frozen=True)
class Repositories:
    """Folders to serve, and the rows that the data set holds."""

    model: Path
    model_v1: Path
    dataset: Path
    mrpc: Splits


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Repositories:
    mrpc = read_mrpc()
    folder = tmp_path_factory.mktemp("repositories")
    return Repositories(
        model=write_bert(folder / "model", sentences(mrpc), seed=0),
        model_v1=write_bert(folder / "model-v1", sentences(mrpc), seed=1),
        dataset=write_glue(folder / "dataset", {"cola": made_up_cola(), "mrpc": mrpc}),
        mrpc=mrpc,
    )


@pytest.fixture
def hub(repositories: Repositories) -> Iterator[StandInHub]:
    """Runs a hub with the model (revisions `main` and `v1`) and the data set."""
    with StandInHub() as hub:
        hub.add("models", MODEL, repositories.model)
        hub.add("models", MODEL, repositories.model_v1, revision="v1")
        hub.add("datasets", DATASET, repositories.dataset)
        yield hub


@pytest.fixture
def hub_env(hub: StandInHub, tmp_path: Path) -> dict[str, str]:
    """Returns the environment of a process that uses `hub`, with an empty cache of its own in `tmp_path`."""
    env = {name: value for name, value in os.environ.items() if not name.lower().startswith(_FOREIGN_VARIABLES)}
    return {
        **env,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path / "hf-home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "*",
        "OMP_NUM_THREADS": "1",
    }
