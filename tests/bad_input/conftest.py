"""Runs the programs in this process, beside a small finished run."""

import importlib
import json
import shutil
import warnings

import datasets
import huggingface_hub.constants
import pytest
import transformers
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

import mps_trainer.scripts
from mps_trainer import cli
from tests.examples.conftest import EMBEDDED

from .cases import TRAIN, TSV_FILES, Case

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """Returns a folder with data, a model, and the output folder of its run with a checkpoint."""
    folder = tmp_path_factory.mktemp("finished")
    Case("", (), "", TSV_FILES).prepare(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_USE_CPU", "true")
        patch.chdir(folder)
        make_model(folder / "model")
        assert main_of("run_glue.py")([*TRAIN, "--max_steps", "2", "--output_dir", "out"]) == 0
    return folder


def make_model(folder, **settings):
    given = {**json.loads((EMBEDDED / "config.json").read_text()), **SMALL, **settings}
    config = AutoConfig.for_model(**{name: value for name, value in given.items() if name != "architectures"})
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(folder)


@pytest.fixture
def run(tmp_path, monkeypatch, capfd, finished_run):
    """`run.prepare(case)` fills the working folder; `run(case)` returns the exit status and stderr."""
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", finished_run / "cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr(mps_trainer.scripts, "FIRST_SPEAKS", 0.0)  # no other process is there to speak first
    for name in ("MPS_TRAINER_TRACEBACK", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def prepare(case):
        for name in case.uses:
            shutil.copytree(finished_run / name, work / name)
        case.prepare(work)
        for name, value in case.environ.items():
            monkeypatch.setenv(name, value)
        return work

    def run_it(case):
        capfd.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other libraries warn before the refusal
            status = main_of(case.program)(list(case.command))
        return status, capfd.readouterr().err

    run_it.prepare = prepare
    yield run_it
    datasets.enable_progress_bars()
    transformers.utils.logging.enable_progress_bar()


def main_of(program):
    if program.endswith(".py"):
        return importlib.import_module(program.removesuffix(".py")).main
    return cli.main
