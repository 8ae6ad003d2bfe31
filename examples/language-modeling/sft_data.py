"""Loads the rows to train on. Checks files line by line first, to name a wrong row before anything is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mps_trainer import MisconfigurationException
from mps_trainer.scripts.loading import BUILDERS, load_splits
from mps_trainer.utils.text import sentence, shown

ROLES = ("system", "developer", "user", "assistant", "tool")
A_LINE = 'A line is like {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}.'
# What a row may have, by the names that TRL gives its formats.
FORMATS = (("messages",), ("prompt", "completion"), ("text",), ("conversations",))
INSTEAD = "Give a folder, a name on a hub that can be reached, or neither model nor data for the tiny model."


def load_rows(script_args: Any, text_field: str, seed: int) -> tuple[Any, Any]:
    """Returns the rows to train on and those to evaluate on, in one of the formats that SFTTrainer takes.

    Args:
        text_field: the field of a row that is text, as `--dataset_text_field` has it.
    """
    name = script_args.dataset_name
    if name is None:
        from datasets import Dataset
        from sft_chats import chats

        train, held = (Dataset.from_dict({"messages": part}) for part in chats())
        return train, held
    if Path(name).suffix.lower() in BUILDERS and not os.path.exists(name):  # the hub is not asked for a file
        raise MisconfigurationException(f"--dataset_name {name} does not exist. Name a file, a folder or a dataset.")
    for file in _json_lines_in(name):
        count = check_file(file, text_field)
        if count < 2 and os.path.isfile(name):
            raise MisconfigurationException(f"{file} has one row, and one more is needed to hold back. Add rows.")
    train, held = load_splits(
        name,
        script_args.dataset_config,
        script_args.dataset_train_split,
        script_args.dataset_test_split,
        seed,
        INSTEAD,
        script_args.dataset_streaming,
    )
    columns = list(next(iter(train), {}))
    if "input_ids" not in columns and not _format_of(columns, text_field):
        raise MisconfigurationException(
            f"{name} has the columns {', '.join(columns) or 'of no row'}, and neither `messages`, `prompt` with "
            f"`completion`, nor `{text_field}`. Take a dataset of chats, or rename its columns."
        )
    return train, held


def is_chat(rows: Any) -> bool:
    """Returns True if the first row is a chat, False for text."""
    row = next(iter(rows), {})
    return any(isinstance(row.get(name), list) for name in ("messages", "prompt", "conversations"))


def first_question(rows: Any) -> str | None:
    """Returns the first message of the user in the first row, or None if rows are not chats."""
    row = next(iter(rows), {})
    messages = row.get("messages") or row.get("prompt")
    if isinstance(messages, str):
        return messages
    chat = [message for message in messages or [] if isinstance(message, dict)]
    said = next((message.get("content") for message in chat if message.get("role") == "user"), None)
    return said if isinstance(said, str) else None


def check_file(file: str, text_field: str = "text") -> int:
    """Returns the number of rows of a JSON Lines file.

    Raises:
        MisconfigurationException: for a file that cannot be read, and for the first row that is wrong, with its line.
    """
    count, wanted = 0, None
    for number, row in _rows_of(file):
        place = f"{file}, line {number}: "
        if not isinstance(row, dict):
            raise MisconfigurationException(f"{place}this is no object, but {shown(row)}. {A_LINE}")
        found = _format_of(row, text_field)
        if found is None or (wanted is not None and found != wanted):
            fields = " and ".join(f"`{name}`" for name in wanted or FORMATS[0])
            raise MisconfigurationException(f"{place}there is no {fields}, but {shown(list(row))}. {A_LINE}")
        wanted = found
        if wrong := _wrong_in(row, found):
            raise MisconfigurationException(f"{place}{wrong}")
        count += 1
    if not count:
        raise MisconfigurationException(f"{file} has no rows. {A_LINE}")
    return count


def _json_lines_in(name: str) -> list[str]:
    if os.path.isdir(name):
        return sorted(str(path) for path in Path(name).glob("*.jsonl"))
    return [name] if name.lower().endswith(".jsonl") and os.path.isfile(name) else []


def _rows_of(file: str) -> Iterator[tuple[int, Any]]:
    try:
        with open(file, encoding="utf-8-sig", newline="\n") as lines:  # only a line feed ends a line of JSON
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield number, json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise MisconfigurationException(
                            f"{file}, line {number}: this is no JSON. {sentence(error)}"
                        ) from error
    except UnicodeDecodeError as error:
        raise MisconfigurationException(
            f"{file} cannot be read: it is not UTF-8 text ({error}). Save it as UTF-8."
        ) from error
    except OSError as error:
        raise MisconfigurationException(f"{file} cannot be read: {sentence(error)}") from error


def _format_of(names: Any, text_field: str) -> tuple[str, ...] | None:
    formats = (*FORMATS, (text_field,))
    return next((fields for fields in formats if all(name in names for name in fields)), None)


def _wrong_in(row: dict[str, Any], fields: tuple[str, ...]) -> str | None:
    """Returns a sentence about the fault of a row of this format, or None."""
    if fields == ("conversations",):  # of other tools, which TRL converts
        return None
    for name in fields:
        value = row[name]
        if isinstance(value, list) and name in ("messages", "prompt", "completion"):
            if wrong := next(filter(None, map(_wrong_with, value)), None):
                return f"in `{name}` {wrong}"
        elif not isinstance(value, str) or name == "messages":
            return f"`{name}` is {'no list of messages' if name == 'messages' else 'no text'}. {A_LINE}"
    if fields == ("messages",) and not any(message["role"] == "assistant" for message in row["messages"]):
        return "no message is the assistant's, so there is nothing to learn. Add its answer, or remove the row."
    return None


def _wrong_with(message: Any) -> str | None:
    if not isinstance(message, dict) or "role" not in message:
        return f"a message has no `role`. {A_LINE}"
    if message["role"] not in ROLES:
        return f"there is the role {shown(message['role'])}. The roles are {', '.join(ROLES)}."
    if not isinstance(message.get("content"), (str, list)) and not message.get("tool_calls"):
        return f"a message of the {message['role']} has no `content`. {A_LINE}"
    return None
