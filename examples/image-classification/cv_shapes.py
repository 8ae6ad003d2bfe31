#!/usr/bin/env python
"""Draws shapes of random colour, size and place, for runs without a folder of images.

    python cv_shapes.py images

writes them as `images/<label>_<number>.jpg`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from cv_data import LabelledImages

LABELS = ("circle", "cross", "square", "triangle")
SIDE = 48  # pixels


def draw_shapes(count: int = 600, seed: int = 0) -> LabelledImages:
    """Returns the same number of images of each label. The label depends only on the outline."""
    random = np.random.default_rng(seed)
    ids = [i % len(LABELS) for i in range(count)]
    return LabelledImages([draw(LABELS[i], random) for i in ids], ids, LABELS)


def draw(label: str, random: np.random.Generator) -> Any:
    from PIL import Image, ImageDraw

    background = random.integers(0, 120, 3)
    noise = random.integers(-20, 21, (SIDE, SIDE, 3))
    image = Image.fromarray((background + noise).clip(0, 255).astype(np.uint8))
    colour = tuple(int(value) for value in random.integers(130, 256, 3))
    half = random.uniform(0.2, 0.38) * SIDE
    x, y = random.uniform(half + 1, SIDE - half - 1, 2)
    pen = ImageDraw.Draw(image)
    box = (x - half, y - half, x + half, y + half)
    if label == "circle":
        pen.ellipse(box, fill=colour)
    elif label == "square":
        pen.rectangle(box, fill=colour)
    elif label == "triangle":
        pen.polygon([(x, y - half), (x - half, y + half), (x + half, y + half)], fill=colour)
    else:
        arm = half / 3
        pen.rectangle((x - half, y - arm, x + half, y + arm), fill=colour)
        pen.rectangle((x - arm, y - half, x + arm, y + half), fill=colour)
    return image


def write(folder: Path, shapes: LabelledImages) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (image, i) in enumerate(zip(shapes.images, shapes.ids, strict=True), start=1):
        image.save(folder / f"{shapes.labels[i]}_{number}.jpg", quality=95)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    write(Path(sys.argv[1]), draw_shapes())
