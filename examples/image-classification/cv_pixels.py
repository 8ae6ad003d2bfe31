"""Converts images to tensors for a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Settings:
    """The image format of a model.

    Args:
        size: pixels of a side.
        mean: of red, green and blue, from 0 to 1.
        std: their standard deviations.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def whole_view(image: Any, size: int) -> Any:
    return image.resize((size, size), _bilinear())


def random_view(image: Any, size: int, least: float = 0.5) -> Any:
    """Returns a random crop of at least half the area with similar proportions, mirrored or not."""
    import torch

    area, proportion, across, down, mirror = torch.rand(5).tolist()
    part = (least + (1 - least) * area) * image.width * image.height
    stretch = math.exp((2 * proportion - 1) * math.log(4 / 3))
    width = min(math.sqrt(part * stretch), image.width)
    height = min(math.sqrt(part / stretch), image.height)
    left, top = across * (image.width - width), down * (image.height - height)
    view = image.resize((size, size), _bilinear(), box=(left, top, left + width, top + height))
    return view.transpose(_mirrored()) if mirror < 0.5 else view


def to_pixels(image: Any, settings: Settings) -> Any:
    """Returns a tensor of colours, rows and columns, normalised with the model's mean and deviation."""
    import torch

    colours = np.asarray(image, dtype=np.float32) / 255
    scaled = (colours - np.float32(settings.mean)) / np.float32(settings.std)
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1)))


def _bilinear() -> Any:
    from PIL import Image

    return Image.Resampling.BILINEAR


def _mirrored() -> Any:
    from PIL import Image

    return Image.Transpose.FLIP_LEFT_RIGHT
