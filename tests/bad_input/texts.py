"""Flags, files and models of the example that adapts a language model."""

from __future__ import annotations

import json

from .cases import Case, split

TEXT = "The wind came from the west. " * 40


def texts(name, says, words="", files=None, file="text.txt", **more):
    source = ("--embedded",) if files is None else ("--train_file", file, "--model_name_or_path", "model")
    command = (*source, *split(words), "--output_dir", "out")
    return Case(f"texts: {name}", command, says, files or {}, program="run_lora.py", **more)


def content(name, says, content, file="text.txt"):
    """Returns a case of a file for a tiny model with its tokenizer."""
    return texts(name, says, files={file: content}, file=file, make=make_model)


def make_model(folder, **settings):
    from lora_model import make_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer([TEXT])
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    sizes |= {"vocab_size": len(tokenizer), "max_position_embeddings": 64, **settings}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def _configuration(**settings):
    def make(folder):
        (folder / "model").mkdir()
        (folder / "model/config.json").write_text(json.dumps(settings))

    return make


def _wider(folder):
    make_model(folder)
    config = json.loads((folder / "model/config.json").read_text())
    (folder / "model/config.json").write_text(json.dumps({**config, "hidden_size": 16}))


GOOD = {"text.txt": TEXT}

FLAGS = [
    Case("texts: nothing to train on", (), ["--train_file is missing", "--embedded"], program="run_lora.py"),
    Case("texts: no model", ("--train_file", "text.txt"), "--model_name_or_path is", GOOD, program="run_lora.py"),
    texts("two sources", "--embedded and --train_file are two sources", "--embedded", files=GOOD),
    texts("a rank of 0", "lora_r=0 is not accepted", "--lora_r 0"),
    texts("no tokens of a sample", "sample_tokens=0 is not accepted", "--sample_tokens 0"),
    texts("a sample longer than the model takes", "--sample_tokens 128 is too much", "--sample_tokens 128"),
    texts("no such layer", ["--target_modules: the model has no layer 'query'", "q_proj"], "--target_modules query"),
    texts("no such layer to save", "--modules_to_save: the model has no layer 'head'", "--modules_to_save head"),
    texts("a layer that takes no adapter", "The adapter cannot be added", "--target_modules norm"),
]
FILES = [
    Case(
        "texts: no file",
        ("--train_file", "text.txt", "--model_name_or_path", "model"),
        "text.txt does not exist",
        program="run_lora.py",
    ),
    Case(
        "texts: a table",
        ("--train_file", "text.csv", "--model_name_or_path", "model"),
        "text.csv is neither a .txt nor a .jsonl file",
        {"text.csv": "text\na\n"},
        program="run_lora.py",
    ),
    content("an empty file", "text.txt has no text in it", ""),
    content("UTF-16", ["text.txt cannot be read", "UTF-8"], TEXT.encode("utf-16")),
    content("a NUL byte", "text.txt has a NUL byte", TEXT + "\x00"),
    content("too short", ["text.txt has", "tokens, and a block is of 64", "--block_size"], "A word."),
    content("nothing to hold back", "text.txt has one block", "The wind came from the west. " * 10, file="text.txt"),
    content("no JSON", "text.jsonl, line 2: this is no JSON", '{"text": "a"}\n{text}\n', file="text.jsonl"),
    content("a list for a row", "text.jsonl, line 1: there is no field `text`", '["a"]\n', file="text.jsonl"),
    content("rows without text", "text.jsonl has no text in it", '{"text": ""}\n', file="text.jsonl"),
]
MODELS = [
    texts("no such model", "./gone is not a folder", "--model_name_or_path ./gone", files=GOOD),
    texts("a model without a tokenizer", "The tokenizer model", files=GOOD, make=_configuration(model_type="llama")),
    texts("weights of another width", "do not fit the model in its config.json", files=GOOD, make=_wider),
    texts(
        "a vocabulary beyond the model's",
        "The tokenizer does not belong to the model",
        files=GOOD,
        make=lambda folder: make_model(folder, vocab_size=100),
    ),
]

TEXT_CASES = [*FLAGS, *FILES, *MODELS]
