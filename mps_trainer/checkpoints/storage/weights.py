"""Finds the weight files of a checkpoint: a single file, or an index and its parts."""

from __future__ import annotations

import os
import re

from .files import damaged, read_object

WEIGHTS = "model.safetensors"
PICKLED_WEIGHTS = "pytorch_model.bin"
_NAME = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
_SUFFIXES = (".safetensors", ".bin")


def is_weights(name: str) -> bool:
    """Returns True for the name of a weight file or of an index of transformers."""
    return _NAME.fullmatch(name) is not None


def weight_files(folder: str) -> list[str]:
    """Returns the names of the files with the weights: safetensors, or pickles of tensors alone.

    Raises:
        MisconfigurationException: if they have an index that is damaged.
    """
    for name in (WEIGHTS, PICKLED_WEIGHTS):
        if os.path.isfile(os.path.join(folder, name)):
            return [name]
        if os.path.lexists(index := os.path.join(folder, f"{name}.index.json")):
            return _indexed(index)
    return []


def _indexed(index: str) -> list[str]:
    """Returns the file names in an index. Refuses names outside its folder."""
    parts = read_object(index, ["weight_map"])["weight_map"]
    if not isinstance(parts, dict) or not parts:
        raise damaged(index, ValueError("its weight_map is not a dictionary of file names"))
    for part in parts.values():
        if not isinstance(part, str) or os.path.basename(part) != part or not part.endswith(_SUFFIXES):
            raise damaged(index, ValueError("its weight_map has values that are not names of weight files"))
    return sorted(set(parts.values()))
