"""Folders of models with parts that are missing, damaged, of another model, or run code."""

import json
import os
import pickle

from .cases import TRAIN, TSV_FILES, Case, split
from .conftest import make_model

COMMAND = (*TRAIN, "--output_dir", "out")
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


class Touch:
    """Runs a command when it is loaded from a pickle."""

    def __reduce__(self):
        return os.system, ("touch ran",)


def cut(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def edit(path, **values):
    """Changes values of a JSON file. None removes one."""
    held = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({name: value for name, value in held.items() if value is not None}))


def model(name, says, make=lambda folder: None, words=""):
    command = (*COMMAND, *split(words))
    return Case(f"models: {name}", command, says, TSV_FILES, lambda folder: make(folder / "model"), ["model"])


def settings(name, says, **values):
    return model(name, says, lambda folder: edit(folder / CONFIG, **values))


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def _pickled(folder):
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch()))


def _remade(**values):
    """Returns a function that replaces the weights by those of a model with other settings, and keeps the config."""

    def make(folder):
        config = (folder / CONFIG).read_text()
        make_model(folder, **values)
        (folder / CONFIG).write_text(config)

    return make


def _larger_vocabulary(folder):
    held = json.loads((folder / TOKENIZER).read_text())
    held["model"]["vocab"]["boat"] = 5000
    (folder / TOKENIZER).write_text(json.dumps(held))


DISTILBERT = {"dim": 16, "hidden_dim": 16, "n_heads": 2, "n_layers": 1}
MODELS = [
    model("no such folder", ["gone/model", "is not a folder"], words="--model_name_or_path ./gone/model"),
    model("a file for a model", "model/config.json is", words="--model_name_or_path model/config.json"),
    model("no such tokenizer", "--tokenizer_name ./gone/words", words="--tokenizer_name ./gone/words"),
    # settings
    settings("no such model_type", "The", model_type="bart_simpson"),
    settings("code of its own", "trust_remote_code", model_type="own", auto_map={"AutoConfig": "main.Config"}),
    settings("a size that heads do not divide", "The model model cannot be loaded", num_attention_heads=3),
    # weights
    model("no weights", "cannot be loaded", without(WEIGHTS)),
    model("a pickle that runs code", "cannot be loaded", _pickled),
    model("weights of another width", "do not fit the model", _remade(hidden_size=32)),
    model("weights of another architecture", "do not fit the model", _remade(model_type="distilbert", **DISTILBERT)),
    # tokenizers
    model("no tokenizer", ["tokenizer", "cannot be loaded"], without(TOKENIZER, "tokenizer_config.json")),
    model("a vocabulary beyond the model's", ["tokenizer", "5000", "296"], _larger_vocabulary),
    model("no token to pad with", "pad_token", lambda folder: edit(folder / "tokenizer_config.json", pad_token="")),
]
