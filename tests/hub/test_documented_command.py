"""The command of the README as people type it, with the hub it loads from replaced and nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mps_trainer import MPSAccelerator, gather_facts
from tests import HUNG_AFTER

from .conftest import Repositories
from .processes import Finished, run_python
from .repositories import MODEL
from .server import StandInHub

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "text-classification"
BATCH_SIZE = 32
EPOCHS = 3
# Enough to go through every stage when a test is not about the figures.
SHORT = ("--max_train_samples", "32", "--max_eval_samples", "32", "--num_train_epochs", "1")
EMBEDDINGS = "bert.embeddings.word_embeddings.weight"


def command(out: Path, *more: str) -> list[str]:
    """The documented arguments of `python`; of a flag that `more` gives again, the last value counts."""
    return [
        "run_glue.py",
        *("--model_name_or_path", MODEL),
        *("--task_name", "mrpc"),
        "--do_train",
        "--do_eval",
        *("--max_seq_length", "128"),
        *("--per_device_train_batch_size", str(BATCH_SIZE)),
        *("--learning_rate", "2e-5"),
        *("--num_train_epochs", str(EPOCHS)),
        *("--output_dir", str(out)),
        "--overwrite_output_dir",
        *more,
    ]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def env(hub_env: dict[str, str]) -> dict[str, str]:
    """As `hub_env`, with this checkout in front of any installed one."""
    return {**hub_env, "PYTHONPATH": str(ROOT)}


def run(env: dict[str, str], out: Path, *more: str) -> Finished:
    return run_python(*command(out, *more), env=env, cwd=EXAMPLE, timeout=HUNG_AFTER)


def results(process: Finished, out: Path) -> dict[str, float]:
    """The figures of a run that succeeded."""
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads((out / "all_results.json").read_text())


def the_only_line(process: Finished, out: Path) -> str:
    """Returns the only message of a run that ended with exit status 2 and left no files."""
    assert process.returncode == 2, process.stderr[-4000:]
    assert "Traceback" not in process.stderr
    assert len(process.messages) == 1, process.messages
    assert not out.exists() or not any(out.iterdir())
    return process.messages[0]


def started_from(out: Path, model: Path) -> bool:
    """Returns True if training from `model` can have led to the weights in `out`.

    Adam moves a weight by about the learning rate a step at most: here by less than 0.004 in all. Random weights of
    another seed (standard deviation 0.02) are 0.1 away somewhere.
    """
    trained, before = load_file(out / "model.safetensors"), load_file(model / "model.safetensors")
    return (trained[EMBEDDINGS].cpu() - before[EMBEDDINGS]).abs().max().item() < 0.01


def test_it_trains_evaluates_and_saves(
    hub: StandInHub, env: dict[str, str], out: Path, repositories: Repositories
) -> None:
    figures = results(run(env, out), out)

    pairs = {split: len(rows) for split, rows in repositories.mrpc.items()}
    assert (figures["train_samples"], figures["eval_samples"]) == (pairs["train"], pairs["validation"])
    assert figures["epoch"] == EPOCHS
    assert 0 < figures["train_loss"] < 1
    assert (figures["eval_accuracy"] * pairs["validation"]) % 1 == pytest.approx(0, abs=1e-6)
    assert 0 <= figures["eval_accuracy"] <= 1
    assert 0 <= figures["eval_f1"] <= 1

    steps = math.ceil(pairs["train"] / BATCH_SIZE) * EPOCHS
    assert {path.name for path in out.glob("checkpoint-*")} == {f"checkpoint-{steps}"}
    for folder in (out, out / f"checkpoint-{steps}"):
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert {"train_results.json", "eval_results.json", "trainer_state.json"} <= {path.name for path in out.iterdir()}
    state = json.loads((out / f"checkpoint-{steps}" / "trainer_state.json").read_text())
    assert state["global_step"] == steps
    assert started_from(out, repositories.model)
    assert not started_from(out, repositories.model_v1)
    assert {"model.safetensors", "train-00000-of-00001.parquet"} < set(hub.downloads())


@pytest.mark.acceptance  # three whole runs
def test_a_second_run_downloads_nothing_and_a_third_needs_no_hub(
    hub: StandInHub, env: dict[str, str], out: Path
) -> None:
    first = results(run(env, out, *SHORT), out)
    assert hub.downloads()

    hub.requests.clear()
    second = results(run(env, out, *SHORT), out)
    assert hub.downloads() == []
    assert second["train_loss"] == pytest.approx(first["train_loss"]), "the same command with the same seed"

    hub.stop()
    third = results(run({**env, "HF_HUB_OFFLINE": "1"}, out, *SHORT), out)
    assert third["train_loss"] == pytest.approx(first["train_loss"])


def test_the_revision_asked_for_is_the_one_that_is_trained(
    hub: StandInHub, env: dict[str, str], out: Path, repositories: Repositories
) -> None:
    results(run(env, out, *SHORT, "--model_revision", "v1"), out)
    assert started_from(out, repositories.model_v1)
    assert not started_from(out, repositories.model)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        pytest.param(("--model_revision", "v9"), "v9", marks=pytest.mark.acceptance),
        (("--model_name_or_path", "google-bert/nothing"), "google-bert/nothing"),
    ],
)
def test_a_model_or_revision_that_is_not_on_the_hub_is_named_in_one_line(
    hub: StandInHub, env: dict[str, str], out: Path, more: tuple[str, str], named: str
) -> None:
    assert named in the_only_line(run(env, out, *more), out)


@pytest.mark.parametrize(
    ("path", "method", "named"),
    [
        pytest.param("train-0", "GET", "nyu-mll/glue", id="data set breaks off", marks=pytest.mark.acceptance),
        pytest.param("model.safetensors", "GET", MODEL, id="weights break off", marks=pytest.mark.acceptance),
        pytest.param("nyu-mll/glue", None, "nyu-mll/glue", id="data set down", marks=pytest.mark.acceptance),
        pytest.param(MODEL, None, MODEL, id="model down", marks=pytest.mark.acceptance),
        pytest.param("model.safetensors", None, MODEL, id="weights down", marks=pytest.mark.acceptance),
    ],
)
def test_a_server_error_ends_in_one_line_and_a_later_run_succeeds(
    hub: StandInHub, env: dict[str, str], out: Path, path: str, method: str | None, named: str
) -> None:
    """The client retries metadata for 23 s, and goes through four names of weight files: 50 s at most."""
    hub.fail_with(500, path_contains=path, method=method)
    process = run(env, out, *SHORT)
    assert named in the_only_line(process, out)
    assert process.seconds < 120

    hub.recover()
    results(run(env, out, *SHORT), out)


def test_asking_for_mps_trains_on_it_or_names_the_cause(hub: StandInHub, env: dict[str, str], out: Path) -> None:
    obstacle = MPSAccelerator.why_not(gather_facts())
    process = run(env, out, *SHORT, "--use_mps_device")
    if obstacle is None:
        assert results(process, out)["train_loss"] > 0
        assert "Training on mps" in process.stdout
    else:
        assert obstacle.cause in the_only_line(process, out)
        assert hub.downloads() == [], "the device is decided before anything is fetched"


@pytest.mark.acceptance
def test_asking_for_mps_and_the_cpu_warns_and_trains_on_the_cpu(
    hub: StandInHub, env: dict[str, str], out: Path
) -> None:
    process = run(env, out, *SHORT, "--use_mps_device", "--use_cpu")
    assert results(process, out)["train_loss"] > 0
    assert "Training on cpu" in process.stdout
    assert "use_mps_device" in process.stderr


def test_a_dataset_of_the_hub_can_be_named_instead_of_a_task(env: dict[str, str], out: Path) -> None:
    words = ["--dataset_name", "nyu-mll/glue", "--dataset_config_name", "mrpc", "--model_name_or_path", MODEL]
    arguments = ["run_glue.py", *words, "--do_train", "--do_eval", "--output_dir", str(out), *SHORT]
    figures = results(run_python(*arguments, env=env, cwd=EXAMPLE, timeout=HUNG_AFTER), out)
    assert figures["train_samples"] == 32
    assert 0 <= figures["eval_accuracy"] <= 1
