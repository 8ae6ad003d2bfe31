"""Runs the Python of pages in docs/ that needs TRL and other libraries: python tests/libraries/run_pages.py PAGE...

All run in one process, because importing the libraries takes longer than the training. A failed page ends it with 1.
"""

import sys
import traceback
from pathlib import Path

from tests import ROOT
from tests.docs.pages import blocks_of
from tests.libraries.tiny import chats, pairs, write_bert, write_llama


def run_page(name: str) -> None:
    """Runs the blocks of a page from top to bottom, with the names that the pages take as given.

    A tiny model takes the place of the one that a page names.
    """
    write_bert("bert")
    model, tokenizer = write_llama("tiny-llama")
    names = {"model": model, "tokenizer": tokenizer, "chats": chats(), "bert": "bert", "pairs": pairs()}
    runs = [tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)[:16] for chat in chats()]
    names |= {"model_folder": "tiny-llama", "train_dataset": [{"input_ids": run, "labels": run} for run in runs]}
    if name != "docs/language-models.md":  # that page trains the model
        write_adapter("tiny-llama", "my-model")
    for block in blocks_of(ROOT / name):
        if block.kind == "file":
            Path(f"{block.label}.jsonl").write_text(block.text, encoding="utf-8")
        elif (block.kind, block.label) == ("needs", "libraries"):
            text = block.text.replace("Qwen/Qwen3-1.7B", "tiny-llama")
            text = text.replace("sentence-transformers/all-MiniLM-L6-v2", "bert")
            exec(compile("\n" * block.line + text, name, "exec"), names)


def write_adapter(folder: str, output: str) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    get_peft_model(model, LoraConfig(target_modules="all-linear")).save_pretrained(output)
    AutoTokenizer.from_pretrained(folder).save_pretrained(output)


failed = []
for page in sys.argv[1:]:
    try:
        run_page(page)
    except Exception:
        failed.append(page)
        traceback.print_exc()
sys.exit(f"Failed: {', '.join(failed)}" if failed else 0)
