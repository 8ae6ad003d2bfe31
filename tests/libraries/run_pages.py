"""Runs the Python of pages in docs/ that needs TRL and other libraries: python tests/libraries/run_pages.py PAGE...

All run in one process, because importing the libraries takes longer than the training. A failed page ends it with 1.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from tests.docs.pages import blocks_of
from tests.libraries.tiny import chats, pairs, write_bert, write_llama

ROOT = Path(__file__).parents[2]


def run_page(name: str) -> None:
    """Runs the blocks of a page from top to bottom, with the names that the pages take as given."""
    write_bert("bert")
    model, tokenizer = write_llama("tiny-llama")
    write_llama("my-model/merged")
    names = {"model": model, "tokenizer": tokenizer, "chats": chats(), "bert": "bert", "pairs": pairs()}
    runs = [tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)[:16] for chat in chats()]
    names |= {"model_folder": "tiny-llama", "train_dataset": [{"input_ids": run, "labels": run} for run in runs]}
    for block in (block for block in blocks_of(ROOT / name) if block.kind == "needs"):
        exec(compile("\n" * block.line + block.text, name, "exec"), names)


failed = []
for page in sys.argv[1:]:
    try:
        run_page(page)
    except Exception:
        failed.append(page)
        traceback.print_exc()
sys.exit(f"Failed: {', '.join(failed)}" if failed else 0)
