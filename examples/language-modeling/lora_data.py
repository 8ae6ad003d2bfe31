"""Loads text from files as blocks of tokens of one length."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lora_arguments import DataArguments

from mps_trainer import MisconfigurationException
from mps_trainer.utils.text import sentence

HELD_BACK = 0.1  # of the blocks, where there is no validation_file

logger = logging.getLogger("mps_trainer.examples")


@dataclass(frozen=True)
class Blocks:
    """Training examples, and held-out examples for perplexity."""

    train: list[dict[str, list[int]]]
    held: list[dict[str, list[int]]]


def read_texts(file: str) -> list[str]:
    """Returns the texts in a file: a .txt file is one text, a .jsonl file has one in each line.

    Raises:
        MisconfigurationException: for a file that cannot be read or has no text, with the line at fault.
    """
    try:
        content = Path(file).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MisconfigurationException(
            f"{file} cannot be read: it is not UTF-8 text ({error}). Save it as UTF-8."
        ) from error
    except OSError as error:
        raise MisconfigurationException(f"{file} cannot be read: {sentence(error)}") from error
    if "\0" in content:
        raise MisconfigurationException(
            f"{file} has a NUL byte, so this is not plain text. Save the file as UTF-8 text."
        )
    is_jsonl = Path(file).suffix.lower() == ".jsonl"
    # only line feeds end a line of JSON: a text may have other separators in it
    lines = enumerate(content.split("\n"), start=1)
    texts = [_text_of(line, file, number) for number, line in lines if line.strip()] if is_jsonl else [content]
    if not any(text.strip() for text in texts):
        raise MisconfigurationException(f"{file} has no text in it.")
    return texts


def _text_of(line: str, file: str, number: int) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MisconfigurationException(f"{file}, line {number}: this is no JSON. {sentence(error)}") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise MisconfigurationException(
            f'{file}, line {number}: there is no field `text` with a text in it. A line is like {{"text": "..."}}.'
        )
    return row["text"]


def load_blocks(data_args: DataArguments, tokenizer: Any, longest: int) -> Blocks:
    """Returns the text as blocks of tokens.

    Args:
        longest: tokens that the model takes.

    Raises:
        MisconfigurationException: where there is too little text for a block to train on and one to hold back.
    """
    size = min(data_args.block_size, longest)
    if size < data_args.block_size:
        logger.warning("block_size is %d; the model takes %d tokens.", data_args.block_size, size)
    train = into_blocks(str(data_args.train_file), tokenizer, size)
    if data_args.validation_file is not None:
        return Blocks(train, into_blocks(data_args.validation_file, tokenizer, size))
    if len(train) < 2:
        raise MisconfigurationException(
            f"{data_args.train_file} has one block of {size} tokens, and one more is needed to hold back. Give more "
            "text, a --validation_file, or a smaller --block_size."
        )
    held = max(1, round(HELD_BACK * len(train)))
    return Blocks(train[:-held], train[-held:])


def into_blocks(file: str, tokenizer: Any, size: int) -> list[dict[str, list[int]]]:
    """Concatenates all texts and cuts them into blocks. An incomplete last block is dropped."""
    ids: list[int] = []
    for text in read_texts(file):
        # the tokenizer warns of texts longer than the model takes, and blocks are not
        ids += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if tokenizer.eos_token_id is not None:
            ids.append(tokenizer.eos_token_id)
    starts = range(0, len(ids) - size + 1, size)
    if not starts:
        raise MisconfigurationException(
            f"{file} has {len(ids)} tokens, and a block is of {size}. Give more text, or a smaller --block_size."
        )
    # with a mask, though there is nothing to hide: without one transformers asks the device at every step whether
    # several texts are packed into a row, and waits for the answer
    mask = [1] * size
    cut = [ids[start : start + size] for start in starts]
    return [{"input_ids": block, "attention_mask": mask, "labels": block} for block in cut]
