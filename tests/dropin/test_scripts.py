"""A script whose import is swapped has the same losses, metrics and files."""

import json
import random
import runpy
import sys
from pathlib import Path

import datasets
import huggingface_hub.constants
import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from tests import ROOT

from .conftest import assert_same

SCRIPT = ROOT / "tests" / "dropin" / "scripts" / "finetune.py"
WORDS = [f"w{i}" for i in range(40)]
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": 48, "max_position_embeddings": 32,
}  # fmt: skip


def configuration(task: str):
    if task == "images":
        return transformers.ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=2)
    if task == "next":
        return transformers.LlamaConfig(**SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return transformers.BertConfig(**SIZES, pad_token_id=0, num_labels=2)


def tokenizer():
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]",
        cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip


def row(task: str, draw: random.Random) -> dict:
    words = draw.choices(WORDS, k=draw.randint(4, 14))
    if task == "images":
        pixels = [[[draw.random() for _ in range(8)] for _ in range(8)] for _ in range(3)]
        return {"pixel_values": pixels, "labels": int(pixels[0][0][0] > 0.5)}
    if task == "tokens":
        return {"words": words, "tags": [int(word > "w2") for word in words]}
    return {"text": " ".join(words), "label": int(words[0] > "w2")}


@pytest.fixture
def files(tmp_path):
    """`files(task)` writes the model and the data of a task, and returns the flags that name them."""

    def make(task: str) -> list[str]:
        configuration(task).save_pretrained(tmp_path / "tiny")
        tokenizer().save_pretrained(tmp_path / "tiny")
        draw = random.Random(0)
        for name, count in (("train", 24), ("dev", 10)):
            lines = (json.dumps(row(task, draw)) for _ in range(count))
            (tmp_path / f"{name}.json").write_text("\n".join(lines))
        named = {"model_folder": "tiny", "train_file": "train.json", "dev_file": "dev.json"}
        return ["--task", task, *(part for key, name in named.items() for part in (f"--{key}", str(tmp_path / name)))]

    return make


FLAGS = ["--do_train", "--do_eval", "--do_predict", "--logging_steps", "1", "--eval_strategy", "epoch"]
FLAGS += ["--save_strategy", "epoch", "--num_train_epochs", "2", "--learning_rate", "1e-3", "--report_to", "none"]
FLAGS += ["--load_best_model_at_end", "--seed", "3", "--disable_tqdm", "true", "--output_dir", "out", "--use_cpu"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the script with the Trainer of a module. Returns the folder that it wrote into."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def run(module: str, flags: list[str]) -> Path:
        folder = tmp_path / module
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("TRAINER_FROM", module)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *flags])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        assert not ended.value.code
        return folder / "out"

    return run


@pytest.mark.parametrize("task", ["sentences", "tokens", "next", "masked", "images"])
def test_script_has_same_losses_metrics_and_files(files, run, task):
    flags = [*files(task), *FLAGS]
    theirs, ours = (run(module, flags) for module in ("transformers", "mps_trainer"))
    own = ("loop_state.json", "manifest.json")  # in each checkpoint, beside transformers' files
    written = [
        {str(path.relative_to(out)) for path in out.rglob("*") if path.name not in own} for out in (ours, theirs)
    ]
    assert written[0] == written[1]
    read = [json.loads((out / "trainer_state.json").read_text()) for out in (ours, theirs)]
    assert_same(read[0]["log_history"], read[1]["log_history"])
    assert len(read[0]["log_history"]) == 6 + 2 + 1
    results = [json.loads((out / "all_results.json").read_text()) for out in (ours, theirs)]
    assert_same(*results)
    for name in ("predictions.txt", "config.json"):
        assert (ours / name).read_text() == (theirs / name).read_text(), name
    # The card says more where transformers leaves placeholders.
    lines, of_transformers = ((out / "README.md").read_text().splitlines() for out in (ours, theirs))
    said = [line for line in of_transformers if line and line != "More information needed"]
    assert [line for line in lines if line in said] == said
