"""Scripts of other authors for the series of restarts, with what they train on. They are run unchanged."""

import importlib.util
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests import ROOT
from tests.tiny import WORDS, tiny, tokenizer_of_words

EMBEDDED = ROOT / "examples" / "text-classification" / "embedded"
STEPS = 24
FLAGS = {
    "max_steps": STEPS, "save_steps": 2, "save_total_limit": 3, "logging_steps": 2, "learning_rate": 1e-3,
    "per_device_train_batch_size": 4, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False,
}  # fmt: skip


def _of_trl(folder: Path, row: Callable[[random.Random], dict]) -> dict[str, object]:
    """Writes 60 rows, and a language model of random weights with its tokenizer."""
    tiny("LlamaForCausalLM", pad_token_id=0, bos_token_id=1, eos_token_id=2).save_pretrained(folder / "tiny")
    made = tokenizer_of_words()
    made.eos_token = "[MASK]"
    made.save_pretrained(folder / "tiny")
    draw = random.Random(0)
    (folder / "rows").mkdir()
    (folder / "rows" / "train.jsonl").write_text("\n".join(json.dumps(row(draw)) for _ in range(60)))
    model = {"model_name_or_path": folder / "tiny", "dtype": "float32", "bf16": False}
    return {**model, "dataset_name": folder / "rows", "max_length": 24, "gradient_checkpointing": False}


def _sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(4, 14)))


def _glue(folder: Path) -> dict[str, object]:
    shutil.copytree(EMBEDDED, folder / "embedded")
    data = {"data_dir": folder / "embedded" / "data" / "MRPC", "model_name_or_path": folder / "embedded"}
    # BERT's keys have a bias without a gradient: AdamW would move it by its rounding errors, 5e-5 in 20 steps
    return {**data, "from_scratch": True, "dynamic": True, "do_train": True, "do_eval": True, "adam_epsilon": 1e-6}


def _trl(name: str) -> Path | None:
    found = importlib.util.find_spec("trl")
    return None if found is None or found.origin is None else Path(found.origin).parent / "scripts" / name


# The file of each script, None where its library is not installed, and what writes its data and returns its flags.
SCRIPTS: dict[str, tuple[Path | None, Callable[[Path], dict[str, object]]]] = {
    "transformers, GLUE": (ROOT / "benchmarks" / "scripts" / "transformers_glue.py", _glue),
    "TRL, sft.py": (_trl("sft.py"), lambda folder: _of_trl(folder, lambda draw: {"text": _sentence(draw)})),
    "TRL, reward.py": (
        _trl("reward.py"),
        lambda folder: _of_trl(folder, lambda draw: {"chosen": _sentence(draw), "rejected": _sentence(draw)}),
    ),
}


def words(name: str, folder: Path, device: str) -> list[str]:
    """Writes the data of a script to `folder`, and returns the script and its arguments."""
    path, prepare = SCRIPTS[name]
    flags = {**FLAGS, **prepare(folder), "output_dir": folder / "out", "use_cpu": device == "cpu"}
    return [str(path), *(word for flag, value in flags.items() for word in (f"--{flag}", str(value)))]
