"""Folders of models: what is missing, damaged, another model's, or would run code."""

from __future__ import annotations

import json
import os
import pickle

from .cases import TRAIN, TSV_FILES, Case

COMMAND = (*TRAIN, "--output_dir", "out")
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


class Touch:
    """Runs when a hostile pickle is loaded."""

    def __reduce__(self):
        return os.system, ("touch ran",)


def cut(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def edit(path, **values):
    """Changes values of a JSON file; None takes one out."""
    held = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({name: value for name, value in held.items() if value is not None}))


def model(name, says, make, *words):
    return Case(
        f"models: {name}", (*COMMAND, *words), says, TSV_FILES, lambda folder: make(folder / "model"), ["model"]
    )


def settings(name, says, **values):
    return model(name, says, lambda folder: edit(folder / CONFIG, **values))


def tokenizer(name, says, make):
    return model(name, ["tokenizer", *([says] if isinstance(says, str) else says)], make)


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def _shards(folder):
    (folder / WEIGHTS).unlink()
    index = {"metadata": {}, "weight_map": {"classifier.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _pickled(content):
    def make(folder):
        (folder / WEIGHTS).unlink()
        (folder / "pytorch_model.bin").write_bytes(content)

    return make


def _header(folder):
    """Safetensors whose header is as long as it says, and says what is not there."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4 * 10**9]}}).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)


def _remade(**values):
    """The model that these settings describe, in the place of the one that is there: but with its config."""

    def make(folder):
        from .conftest import make_model

        config = (folder / CONFIG).read_text()
        make_model(folder, **values)
        (folder / CONFIG).write_text(config)

    return make


def _larger_vocabulary(folder):
    """The tokenizer's, while the model keeps its own."""
    held = json.loads((folder / TOKENIZER).read_text())
    vocabulary = held["model"]["vocab"]
    vocabulary["boat"] = 5000
    (folder / TOKENIZER).write_text(json.dumps(held))


def _new_token(folder):
    """One that the tokenizer pads with and the model was not made larger for."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "[FILL]"})
    tokenizer.save_pretrained(folder)


def _one_kind_of_text(folder):
    """The model tells one sentence from none, and the tokenizer numbers the second one."""
    from .conftest import make_model

    make_model(folder, type_vocab_size=1)


NAMES = {"0": "not_equivalent", "1": "equivalent"}
PATHS = [
    model(
        "no such folder",
        ["gone/model", "is not a folder"],
        lambda folder: None,
        "--model_name_or_path",
        "./gone/model",
    ),
    model("no such folder and no such name", "gone", lambda folder: None, "--model_name_or_path", "gone"),
    model("an empty name", "model_name_or_path='' is not accepted", lambda folder: None, "--model_name_or_path", ""),
    model(
        "a file for a model",
        "model/config.json is a file",
        lambda folder: None,
        "--model_name_or_path",
        "model/config.json",
    ),
    model(
        "no such tokenizer",
        "--tokenizer_name ./gone/words is not a folder",
        lambda folder: None,
        "--tokenizer_name",
        "./gone/words",
    ),
    model(
        "no such configuration",
        "--config_name ./gone/config is not a folder",
        lambda folder: None,
        "--config_name",
        "./gone/config",
    ),
    model("an empty folder", "The", lambda folder: [path.unlink() for path in folder.iterdir()]),
]

SETTINGS = [
    model("no config.json", "The", without(CONFIG)),
    model("an empty config.json", "The", text(CONFIG, "")),
    model("half a config.json", "The", lambda folder: cut(folder / CONFIG)),
    model("a list for config.json", "The", text(CONFIG, "[1]")),
    settings("no model_type", "The", model_type=None, architectures=None),
    settings("no such model_type", "The", model_type="bart_simpson"),
    settings("a model of images", "The model model cannot be loaded", model_type="vit"),
    settings("another architecture", "do not fit the model", model_type="distilbert"),
    settings("code of its own", "trust_remote_code", model_type="own", auto_map={"AutoConfig": "main.Config"}),
    settings("text for a size", "The", hidden_size="wide"),
    settings("a size below 0", "The", hidden_size=-16),
    settings("a size that heads do not divide", "The model model cannot be loaded", num_attention_heads=3),
    settings("text for labels", "The", id2label="positive"),
    settings(
        "words for label ids",
        "ids from 0 to 1",
        label2id={"equivalent": "one", "not_equivalent": "two"},
        id2label=NAMES,
    ),
    settings(
        "label ids out of range", "ids from 0 to 1", label2id={"equivalent": 7, "not_equivalent": 0}, id2label=NAMES
    ),
    settings(
        "one label id for two labels",
        "ids from 0 to 1",
        label2id={"equivalent": 0, "not_equivalent": 0},
        id2label=NAMES,
    ),
    settings("no such activation", "The model model cannot be loaded", hidden_act="wiggle"),
    settings("another width", ["do not fit the model", "config.json"], hidden_size=32),
    settings("fewer positions", ["do not fit the model", "config.json"], max_position_embeddings=8),
    settings("more layers", "do not fit the model", num_hidden_layers=4),
    settings("a dropout of 7", "The model model cannot be loaded", hidden_dropout_prob=7.0),
]

WEIGHT_FILES = [
    model("no weights", "cannot be loaded", without(WEIGHTS)),
    model("empty weights", "cannot be loaded", text(WEIGHTS, "")),
    model("half the weights", "cannot be loaded", lambda folder: cut(folder / WEIGHTS)),
    model("weights but for a byte", "cannot be loaded", lambda folder: cut(folder / WEIGHTS, 0.9999)),
    model(
        "a pointer of LFS for weights",
        "cannot be loaded",
        text(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"),
    ),
    model(
        "noise for weights", "cannot be loaded", lambda folder: (folder / WEIGHTS).write_bytes(bytes(range(256)) * 99)
    ),
    model("weights that promise too much", "cannot be loaded", _header),
    model(
        "a folder for weights",
        "cannot be loaded",
        lambda folder: ((folder / WEIGHTS).unlink(), (folder / WEIGHTS).mkdir()),
    ),
    model(
        "a link to nowhere for weights",
        "cannot be loaded",
        lambda folder: ((folder / WEIGHTS).unlink(), (folder / WEIGHTS).symlink_to("gone")),
    ),
    model("an index of shards that are missing", "cannot be loaded", _shards),
    model(
        "an index that is no JSON",
        "cannot be loaded",
        lambda folder: (_shards(folder), cut(folder / f"{WEIGHTS}.index.json")),
    ),
    model("a pickle that runs code", "cannot be loaded", _pickled(pickle.dumps(Touch()))),
    model("a pickle of 1999 that runs code", "cannot be loaded", _pickled(pickle.dumps(Touch(), protocol=0))),
    model("noise for a pickle", "cannot be loaded", _pickled(b"\x80" + bytes(range(256)))),
    model("an empty pickle", "cannot be loaded", _pickled(b"")),
    model("weights of another width", "do not fit the model", _remade(hidden_size=32)),
    model(
        "weights of another architecture",
        "do not fit the model",
        _remade(model_type="distilbert", dim=16, hidden_dim=16, n_heads=2, n_layers=1),
    ),
]

TOKENIZERS = [
    tokenizer("no tokenizer", "cannot be loaded", without(TOKENIZER, "tokenizer_config.json")),
    tokenizer("a tokenizer that is no JSON", "cannot be loaded", lambda folder: cut(folder / TOKENIZER)),
    tokenizer("an empty tokenizer", "cannot be loaded", text(TOKENIZER, "")),
    tokenizer("a tokenizer of an unknown kind", "cannot be loaded", text(TOKENIZER, '{"model": {"type": "Magic"}}')),
    tokenizer("settings that are no JSON", "cannot be loaded", text("tokenizer_config.json", "{")),
    tokenizer("a list of settings", "cannot be loaded", text("tokenizer_config.json", "[]")),
    tokenizer(
        "text for a length", "model_max_length", lambda f: edit(f / "tokenizer_config.json", model_max_length="many")
    ),
    tokenizer(
        "a length below 0", "model_max_length", lambda f: edit(f / "tokenizer_config.json", model_max_length=-1)
    ),
    tokenizer("a vocabulary beyond the model's", ["5000", "296"], _larger_vocabulary),
    tokenizer(
        "no token to pad with",
        "pad",
        lambda folder: edit(
            folder / "tokenizer_config.json",
            pad_token="",
        ),
    ),
]

MODELS = [*WEIGHT_FILES, *PATHS, *SETTINGS, *TOKENIZERS]
