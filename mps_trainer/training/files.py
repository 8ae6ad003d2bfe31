"""Reading and writing the files of a checkpoint. Nothing that is read here can run code."""

from __future__ import annotations

import json
import pickle
from typing import Any

import torch

from ..errors import MisconfigurationException


def read_json(path: str) -> Any:
    """Raises MisconfigurationException for a file that is not JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except ValueError as error:
        raise _damaged(path, error) from error


def write_json(path: str, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)


def read_tensors(path: str, allowed: list[Any] | None = None) -> Any:
    """What `torch.save` wrote, on the CPU: tensors and plain containers, and the constructors in `allowed`.

    Raises:
        MisconfigurationException: for a file that is damaged, or that would run code when unpickled.
    """
    try:
        with torch.serialization.safe_globals(allowed or []):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise MisconfigurationException(
            f"{path} is refused: it holds something other than tensors and plain values, which could run code when "
            "it is loaded, or it is damaged. Resume from another checkpoint."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error


def read_safetensors(path: str) -> dict[str, torch.Tensor]:
    """Raises MisconfigurationException for a damaged file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise _damaged(path, error) from error


def _damaged(path: str, error: Exception) -> MisconfigurationException:
    why = (str(error) or type(error).__name__).splitlines()[0]
    return MisconfigurationException(f"{path} is damaged and cannot be read: {why}. Resume from another checkpoint.")
