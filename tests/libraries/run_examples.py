"""Runs the examples' scripts one after the other in one process; writes status and output of each as JSON.

    python tests/libraries/run_examples.py COMMANDS.json RESULTS.json

COMMANDS.json is a list of lists: a script's name and its arguments; the name of the module that parses them, to do no
more than that; a page in docs/, whose Python is run from top to bottom; or `copy_model` with a model's folder, a
copy's, and the chat template that the copy gets.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import shutil
import sys
import traceback
from pathlib import Path

from tests.docs.pages import blocks_of

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / folder) for folder in ("language-modeling", "sentence-embeddings")]


def run_page(name: str) -> int:
    """Runs the Python of a page that needs the libraries, with the names that the pages take as given; returns 0.

    A tiny model takes the place of the one that a page names.
    """
    from bi_encoder_pairs import pairs, write_tiny_bert
    from sft_chats import chats, tiny_model, tiny_tokenizer

    write_tiny_bert("bert")
    tokenizer = tiny_tokenizer()
    names = {"model": tiny_model(tokenizer), "tokenizer": tokenizer, "chats": chats()[0], "bert": "bert"}
    names["pairs"] = pairs()[0]
    for part in (names["model"], tokenizer):
        part.save_pretrained("tiny-llama")
    runs = [tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)[:16] for chat in names["chats"]]
    names |= {"model_folder": "tiny-llama", "train_dataset": [{"input_ids": run, "labels": run} for run in runs]}
    if name != "docs/language-models.md":  # which trains it
        write_adapter("tiny-llama", "my-model")
    for block in blocks_of(ROOT / name):
        if block.kind == "file":
            Path(f"{block.label}.jsonl").write_text(block.text, encoding="utf-8")
        elif (block.kind, block.label) == ("needs", "libraries"):
            text = block.text.replace("Qwen/Qwen3-1.7B", "tiny-llama")
            exec(compile("\n" * block.line + text, name, "exec"), names)
    return 0


def write_adapter(folder: str, output: str) -> None:
    """Writes an adapter of the model in `folder`, untrained, and the tokenizer."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    get_peft_model(model, LoraConfig(target_modules="all-linear")).save_pretrained(output)
    AutoTokenizer.from_pretrained(folder).save_pretrained(output)


def copy_model(folder: str, copy: str, template: str) -> int:
    """Copies a model's folder, with another chat template or, if that is empty, with none; returns 0."""
    shutil.copytree(folder, copy)
    (Path(copy) / "chat_template.jinja").write_text(template)
    if not template:
        (Path(copy) / "chat_template.jinja").unlink()
    return 0


def run(name: str, words: list[str]) -> dict[str, object]:
    """Returns the exit status, stdout and stderr of a script's `main`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if name.endswith(".md"):
                status = run_page(name)
            elif name == "copy_model":
                status = copy_model(*words)
            else:
                module = importlib.import_module(name.removesuffix(".py"))
                status = module.main(words) if hasattr(module, "main") else bool(module.parse(words)) - 1
        except Exception:
            status, _ = 1, traceback.print_exc()
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    commands = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([run(name, words) for name, *words in commands]))
