"""Loads models and datasets, and reports errors and invalid files in one line."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..utils.text import sentence

HELD_BACK = 0.1  # of the rows, where a dataset has no split to evaluate on
BUILDERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}  # for a file, by its ending


def require_packages(script: str, modules: tuple[str, ...], extra: str) -> None:
    """Raises MisconfigurationException for the first module that is not installed. `extra` installs it."""
    for module in modules:
        if find_spec(module) is None:
            raise MisconfigurationException(
                f"{script} needs {module.replace('_', '-')}, which is not installed. Install it: "
                f"pip install 'mps_trainer[{extra}]'."
            )


def require_dataset(name: str | None) -> None:
    """Raises MisconfigurationException for a path that does not exist, without asking the hub."""
    if name is not None and not os.path.exists(name) and _is_path(name):
        raise MisconfigurationException(f"--dataset_name {name} does not exist. Name a file, a folder or a dataset.")


def _is_path(name: str) -> bool:
    """Returns True for a name that no repository on the hub can have."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def load_splits(
    name: str, config: str | None, train: str, test: str, seed: int, instead: str, streaming: bool = False
) -> tuple[Any, Any]:
    """Returns the rows to train on and those to evaluate on, of a file, a folder or a dataset on the hub.

    Args:
        train: the name of the split to train on.
        test: the name of the split to evaluate on; if there is none, a tenth of the other is held back.
        instead: the sentence that says what to do where the dataset cannot be loaded.

    Raises:
        MisconfigurationException: for a dataset that cannot be loaded, and splits that it does not have.
    """
    from datasets import load_dataset

    with errors_about("dataset", name, instead):
        if os.path.isfile(name):
            if (builder := BUILDERS.get(Path(name).suffix.lower())) is None:
                raise ValueError(f"its name ends in none of {', '.join(BUILDERS)}.")
            splits = load_dataset(builder, data_files=glob.escape(name), streaming=streaming)
        else:
            splits = load_dataset(name, config, streaming=streaming)
        if train not in splits:
            raise ValueError(f"it has no split {train!r}, but {', '.join(splits)}.")
        if test in splits:
            return splits[train], splits[test]
        if streaming:
            raise ValueError(f"a stream cannot be split, and it has no split {test!r}.")
        parts = splits[train].train_test_split(HELD_BACK, seed=seed)
        return parts["train"], parts["test"]


def require_folder_or_name(flag: str, name: str | None, contents: str) -> None:
    """Raises MisconfigurationException for a path that is no folder, without asking the hub.

    Args:
        contents: the expected contents of a folder.
    """
    if name is None or os.path.isdir(name):
        return
    if os.path.exists(name):
        raise MisconfigurationException(f"--{flag}: {name} is a file, and a folder or a name on the hub is expected.")
    if _is_path(name):
        raise MisconfigurationException(f"--{flag} {name} is not a folder. Name one that has {contents}.")


@contextlib.contextmanager
def errors_about(what: str, name: str | None, instead: str) -> Iterator[None]:
    """Turns errors of the libraries about `what` into one line that names it.

    They raise anything: KeyError, TypeError and worse for a configuration, a bare Exception for a tokenizer.

    Args:
        instead: the sentence that says what to do.
    """
    try:
        yield
    except MisconfigurationException:
        raise
    except Exception as error:
        raise MisconfigurationException(f"The {what} {name} cannot be loaded: {sentence(error)} {instead}") from error


_NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"  # transformers reads it


@contextlib.contextmanager
def straight_to_device(args: Any) -> Iterator[dict[str, Any]]:
    """Yields the arguments with which `from_pretrained` puts weights on the device without a copy on the host.

    On mps it loads one weight after the other inside: the threads of transformers crash there when they convert
    weights to another number format (transformers issue 48029).
    """
    if args.device.type != "mps" or args.fsdp:
        yield {}
        return
    before = os.environ.get(_NO_THREADS)
    os.environ[_NO_THREADS] = "1"
    try:
        yield {"device_map": args.device.type}
    finally:
        del os.environ[_NO_THREADS]
        if before is not None:
            os.environ[_NO_THREADS] = before


def require_own_weights(network: Any, loading: dict[str, Any], name: str) -> list[str]:
    """Returns the names of the head's weights with a different shape, which the library initialises randomly.

    Args:
        loading: the second result of `from_pretrained(..., output_loading_info=True)`.

    Raises:
        MisconfigurationException: if weights of the body are missing or have another shape.
    """
    prefix = f"{network.base_model_prefix}."
    other = sorted(key for key, *_ in loading["mismatched_keys"])
    body = [f"{key} has a different shape" for key in other if key.startswith(prefix)]
    # a pooler that a language model never had is begun anew, as the head is
    missing = sorted(key for key in loading["missing_keys"] if key.startswith(prefix) and "pooler" not in key)
    body += [f"{key} is missing" for key in missing]
    if body:
        raise MisconfigurationException(
            f"The weights in {name} do not fit the model in its config.json: {body[0]}. Give --model_name_or_path a "
            "folder with files of one model."
        )
    return [key for key in other if not key.startswith(prefix)]


@contextlib.contextmanager
def reports_kept_back() -> Iterator[list[logging.LogRecord]]:
    """Delays the library's logs about weights, and drops them if the model is refused."""
    kept: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        kept.append(record)
        return False

    loggers = [logging.getLogger(f"transformers.{name}") for name in ("modeling_utils", "utils.loading_report")]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield kept
    finally:
        for logger in loggers:
            logger.removeFilter(keep)
