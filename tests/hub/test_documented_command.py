"""The command of the README as people type it, with the hub it loads from replaced and nothing else."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, BertForPreTraining

from mps_trainer.scripts.tables import read_table
from tests import ROOT, run_python

from .stand_in import StandInHub

pytestmark = pytest.mark.integration

EXAMPLE = ROOT / "examples" / "text-classification"
MODEL = "google-bert/bert-base-cased"
BATCH_SIZE = 32
EPOCHS = 3
# Enough to go through every stage when a test is not about the figures.
SHORT = ("--max_train_samples", "32", "--max_eval_samples", "32", "--num_train_epochs", "1")
EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
# The shell's settings of the hub, its caches or a proxy must not reach the tests.
FOREIGN_VARIABLES = ("hf_", "hugging", "transformers_", "http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> dict[tuple[str, str], Path]:
    """Writes a tiny BERT with the heads of pretraining in two revisions, and MRPC from the sample of the example."""
    folder = tmp_path_factory.mktemp("served")
    for seed, name in enumerate(("main", "v1")):
        AutoTokenizer.from_pretrained(EXAMPLE / "embedded").save_pretrained(folder / name)
        torch.manual_seed(seed)
        BertForPreTraining(AutoConfig.from_pretrained(EXAMPLE / "embedded")).save_pretrained(folder / name)
    kinds = {"sentence1": Value("string"), "sentence2": Value("string"), "idx": Value("int32")}
    features = Features({**kinds, "label": ClassLabel(names=["not_equivalent", "equivalent"])})
    for split, name in (("train", "train"), ("validation", "dev"), ("test", "test")):
        table = read_table(EXAMPLE / "embedded" / "data" / "MRPC" / f"{name}.tsv").to_list()
        pairs = [{"sentence1": row["#1 String"], "sentence2": row["#2 String"]} for row in table]
        rows = [{**pairs[i], "label": int(row.get("Quality", -1)), "idx": i} for i, row in enumerate(table)]
        Dataset.from_list(rows, features=features).to_parquet(folder / "glue" / "mrpc" / f"{split}-0.parquet")
    (folder / "glue" / "README.md").write_text("---\nconfigs:\n- config_name: mrpc\n  data_dir: mrpc\n---\n")
    models = {(f"models/{MODEL}", name): folder / name for name in ("main", "v1")}
    return {**models, ("datasets/nyu-mll/glue", "main"): folder / "glue"}


@pytest.fixture
def hub(served):
    with StandInHub(served) as hub:
        yield hub


@pytest.fixture
def env(hub: StandInHub, tmp_path: Path, monkeypatch) -> dict[str, str]:
    for name in [name for name in os.environ if name.lower().startswith(FOREIGN_VARIABLES)]:
        monkeypatch.delenv(name)
    return {
        "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf-home"), "HF_HUB_OFFLINE": "0", "NO_PROXY": "*",
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip


def command(out: Path, *more: str) -> list[str]:
    """The documented arguments of `python`; of a flag that `more` gives again, the last value counts."""
    words = (
        f"run_glue.py --model_name_or_path {MODEL} --task_name mrpc --do_train --do_eval --max_seq_length 128 "
        f"--per_device_train_batch_size {BATCH_SIZE} --learning_rate 2e-5 --num_train_epochs {EPOCHS} "
        "--overwrite_output_dir --output_dir"
    )
    return [*words.split(), str(out), *more]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(env: dict[str, str], out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run_python(*command(out, *more), cwd=EXAMPLE, **env)


def results(process: subprocess.CompletedProcess[str], out: Path) -> dict[str, float]:
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads((out / "all_results.json").read_text())


def the_only_line(process: subprocess.CompletedProcess[str], out: Path) -> str:
    """Returns the only message of a run that ended with exit status 2 and left no files."""
    assert process.returncode == 2, process.stderr[-4000:]
    assert "Traceback" not in process.stderr
    # packages print lines of their own: huggingface_hub about each retry, torchao about others
    lines = [line for line in process.stderr.splitlines() if line.startswith("run_glue.py: ")]
    assert len(lines) == 1, process.stderr
    assert not out.exists() or not any(out.iterdir())
    return lines[0]


def started_from(out: Path, model: Path) -> bool:
    """Returns True if training from `model` can have led to the weights in `out`.

    Adam moves a weight by about the learning rate a step at most: here by less than 0.004 in all. Random weights of
    another seed (standard deviation 0.02) are 0.1 away somewhere.
    """
    trained, before = load_file(out / "model.safetensors"), load_file(model / "model.safetensors")
    return (trained[EMBEDDINGS].cpu() - before[EMBEDDINGS]).abs().max().item() < 0.01


def test_it_trains_evaluates_and_saves(hub, env, out, served):
    figures = results(run(env, out), out)
    assert (figures["train_samples"], figures["eval_samples"]) == (1500, 400)
    assert figures["epoch"] == EPOCHS
    assert 0 < figures["train_loss"] < 1
    assert (figures["eval_accuracy"] * 400) % 1 == pytest.approx(0, abs=1e-6)
    steps = math.ceil(1500 / BATCH_SIZE) * EPOCHS
    assert {path.name for path in out.glob("checkpoint-*")} == {f"checkpoint-{steps}"}
    assert (out / "tokenizer.json").is_file()
    assert started_from(out, served[f"models/{MODEL}", "main"])
    assert not started_from(out, served[f"models/{MODEL}", "v1"])
    assert {"model.safetensors", "train-0.parquet"} < set(hub.downloads)


def test_a_model_that_is_not_on_the_hub_is_named_in_one_line(env, out):
    name = "google-bert/nothing"
    assert name in the_only_line(run(env, out, "--model_name_or_path", name), out)


def test_a_hub_that_ends_connections_is_one_line_with_the_other_choices_and_without_retries(hub, env, out):
    hub.is_closed = True
    line = the_only_line(run(env, out), out)
    for choice in ("hub", "--data_dir", "--train_file", "--embedded"):
        assert choice in line
    assert 1 <= hub.ended <= 2  # its client tries five times, waiting longer each time


def test_a_dataset_of_the_hub_can_be_named_instead_of_a_task_and_a_revision_of_the_model(env, out, served):
    words = ["--dataset_name", "nyu-mll/glue", "--dataset_config_name", "mrpc", "--model_name_or_path", MODEL]
    words += ["--model_revision", "v1", "--do_train", "--do_eval", "--output_dir", str(out), *SHORT]
    arguments = ["run_glue.py", *words]
    figures = results(run_python(*arguments, cwd=EXAMPLE, **env), out)
    assert figures["train_samples"] == 32
    assert 0 <= figures["eval_accuracy"] <= 1
    assert started_from(out, served[f"models/{MODEL}", "v1"])
    assert not started_from(out, served[f"models/{MODEL}", "main"])
