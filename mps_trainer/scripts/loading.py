"""Models of other people: what a library raises or lets pass for one that cannot be used, in one line."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from ..errors import MisconfigurationException
from ..refusal import sentence


def require_folder_or_name(flag: str, name: str | None, contents: str) -> None:
    """Raises MisconfigurationException for a path to no folder: the hub has no names like it, and need not be asked.

    Args:
        contents: what a folder is expected to have.
    """
    if name is None or os.path.isdir(name):
        return
    if os.path.exists(name):
        raise MisconfigurationException(f"--{flag}: {name} is a file, and a folder or a name on the hub is expected.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise MisconfigurationException(f"--{flag} {name} is not a folder. Name one that has {contents}.")


@contextlib.contextmanager
def errors_about(what: str, name: str | None, instead: str) -> Iterator[None]:
    """Turns what the libraries raise for something that cannot be had into one line that names it.

    That is anything: KeyError, TypeError and worse for a configuration, a bare Exception for a tokenizer.

    Args:
        instead: the sentence that says what to do.
    """
    try:
        yield
    except MisconfigurationException:
        raise
    except Exception as error:
        raise MisconfigurationException(f"The {what} {name} cannot be loaded: {sentence(error)} {instead}") from error


def strangers(network: Any, loading: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Weights of another shape, in the head and elsewhere. The library would begin what is missing at random.

    Args:
        loading: what `from_pretrained(..., output_loading_info=True)` told.

    Returns:
        Names of the head's weights that have another shape, and what is wrong with the body, each as words.
    """
    prefix = f"{network.base_model_prefix}."
    other = sorted(key for key, *_ in loading["mismatched_keys"])
    # a pooler that a language model never had is begun anew, as the head is
    missing = sorted(key for key in loading["missing_keys"] if key.startswith(prefix) and "pooler" not in key)
    in_body = [f"{key} has another shape" for key in other if key.startswith(prefix)]
    return [key for key in other if not key.startswith(prefix)], [*in_body, *(f"{key} is missing" for key in missing)]


def require_own_weights(network: Any, loading: dict[str, Any], name: str) -> list[str]:
    """Raises MisconfigurationException where the weights are not this model's; gives the head's that are not."""
    head, body = strangers(network, loading)
    if body:
        raise MisconfigurationException(
            f"The weights in {name} are another model's than its config.json describes: {body[0]}. Give "
            "--model_name_or_path a folder whose files belong together."
        )
    return head


@contextlib.contextmanager
def reports_kept_back() -> Iterator[list[logging.LogRecord]]:
    """What the library logs about weights, for later: where the model is refused, the refusal says it all."""
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
