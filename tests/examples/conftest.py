"""Fixtures that run the scripts of the examples."""

import importlib
import json
import os
import sys
from pathlib import Path

import pytest
from PIL import Image
from transformers import AutoTokenizer, ViTImageProcessorPil

from tests import ROOT
from tests.tiny import tiny

EXAMPLE = ROOT / "examples" / "text-classification"
EMBEDDED = EXAMPLE / "embedded"
# This folder has real GLUE data and a real pretrained model, which are not part of the project.
REAL = Path(os.environ.get("MPS_TRAINER_REAL_DATA", ROOT.parent / "shared"))

FOLDERS = sorted(path for path in (ROOT / "examples").iterdir() if (path / "README.md").exists())
sys.path.insert(0, str(EXAMPLE))  # run_glue


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def run_glue(out, capfd, monkeypatch):
    """Runs run_glue.py with arguments and `--output_dir`. Returns status, stdout and stderr."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # the same figures on every machine

    def run(*arguments: object) -> tuple[int, str, str]:
        words = [str(argument) for argument in arguments]
        capfd.readouterr()
        status = importlib.import_module("run_glue").main([*words, "--output_dir", str(out)])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return run


def write_bert(folder: Path, **sizes: int) -> None:
    """Writes a tiny BERT and the embedded tokenizer."""
    AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(folder)
    tiny("BertForSequenceClassification", vocab_size=296, **sizes).save_pretrained(folder)


def write_vit(folder: Path) -> None:
    """Writes a tiny model for images of 32 pixels, whose head for five labels the script replaces."""
    tiny("ViTForImageClassification", image_size=32, patch_size=8, num_labels=5).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)


def write_images(folder: Path, name: str, count: int = 20) -> None:
    """Writes red beagles and blue pugs; `name` is a pattern such as "{label}/{i}.png"."""
    for label, colour in (("beagle", (200, 20, 20)), ("pug", (20, 20, 200))):
        for i in range(count):
            path = folder / name.format(label=label, i=i)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), tuple(each + i for each in colour)).save(path)


def use_of(name: str, replaced: dict[str, str]) -> str:
    """Returns the Python of the section "Use the model" in an example's README, with other paths."""
    readme = (ROOT / "examples" / name / "README.md").read_text(encoding="utf-8")
    code = readme.partition("## Use the model")[2].partition("```python\n")[2].partition("```")[0]
    for path, other in replaced.items():
        assert path in code
        code = code.replace(path, other)
    return code


def read(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())
