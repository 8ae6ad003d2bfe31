"""How a field of the arguments is declared."""

from __future__ import annotations

import dataclasses
from typing import Any


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a default and the text that `--help` shows.

    Everything in `metadata` reaches argparse as it is, so only argparse's own keywords belong there.
    """
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


def option_list(help: str) -> Any:
    """A field that takes several values, none by default."""
    return dataclasses.field(default_factory=list, metadata={"help": help})
