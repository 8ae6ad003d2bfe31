"""Finds images and labels in a folder, checks them, splits them, and makes rows for the model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cv_pixels import Settings, random_view, to_pixels, whole_view

from mps_trainer import MisconfigurationException
from mps_trainer.utils.text import sentence

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
LABELLED = re.compile(r"(.+)_\d+")


@dataclass(frozen=True)
class LabelledImages:
    """Images and their labels.

    Args:
        images: paths, or images of Pillow.
        ids: for each the index of its label in `labels`.
        labels: names in alphabetical order.
    """

    images: list[Any]
    ids: list[int]
    labels: tuple[str, ...]

    def select(self, indices: Any) -> LabelledImages:
        return LabelledImages([self.images[i] for i in indices], [self.ids[i] for i in indices], self.labels)


def find_images(data_dir: str) -> LabelledImages:
    """Returns the images in a folder, with labels from their names or from their folders.

    Raises:
        MisconfigurationException: where there are none, one has no label or is none, or all have the same label.
    """
    folder = Path(data_dir)
    try:
        if not folder.is_dir():
            what = "is a file, and a folder is expected" if folder.exists() else "is not a folder"
            raise MisconfigurationException(f"--data_dir {folder} {what}. Name one that has images in it.")
        named = labels_from_names(folder)
        found = named or labels_from_folders(folder)
    except OSError as error:
        raise MisconfigurationException(f"--data_dir {folder} cannot be read: {sentence(error)}") from error
    if not found:
        raise MisconfigurationException(
            f"--data_dir {folder} has no images. Put images called <label>_<number>.jpg there, or a folder of images "
            f"for each label. Images end in {', '.join(SUFFIXES)}."
        )
    labels = tuple(sorted({label for _, label in found}))
    if len(labels) == 1:
        raise MisconfigurationException(
            f"All images in {folder} have the label {labels[0]!r}: there is nothing to tell apart."
        )
    for path, _ in found:
        require_image(path)
    ids = {label: i for i, label in enumerate(labels)}
    return LabelledImages([str(path) for path, _ in found], [ids[label] for _, label in found], labels)


def images_in(folder: Path) -> list[Path]:
    """Returns the files in alphabetical order, because disks differ in order, without files of Finder."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def labels_from_names(folder: Path) -> list[tuple[Path, str]]:
    found = []
    for path in images_in(folder):
        match = LABELLED.fullmatch(path.stem)
        if match is None:
            raise MisconfigurationException(
                f"{path} has no label in its name. Call it <label>_<number>{path.suffix}, as in cat_12{path.suffix}."
            )
        found.append((path, match[1]))
    return found


def labels_from_folders(folder: Path) -> list[tuple[Path, str]]:
    found = []
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        images = images_in(inner)
        if not images:
            raise MisconfigurationException(
                f"{inner} has no images of the label {inner.name!r}. Put some there, or remove the folder."
            )
        found += [(path, inner.name) for path in images]
    return found


def require_image(path: Path) -> None:
    """Reads the header alone: pictures that are cut off later are found when their turn comes."""
    from PIL import Image

    try:
        with Image.open(path):
            pass
    except Exception as error:  # Pillow raises of every kind
        raise MisconfigurationException(_unreadable(path, error)) from error


def _unreadable(path: Any, error: Exception) -> str:
    return f"{path} is no image that can be read: {sentence(error)} Remove it, or save it anew."


def split(images: LabelledImages, seed: int, share: float = 0.8) -> tuple[LabelledImages, LabelledImages]:
    """A share to train on and the rest to evaluate, by a draw that the seed decides."""
    order = np.random.default_rng(seed).permutation(len(images.ids))
    cut = int(share * len(order))
    return images.select(order[:cut]), images.select(order[cut:])


class Rows:
    """The rows of a dataset: an image as numbers, and its label.

    Args:
        augment: take a random part of the image, mirrored or not, by torch's generator. A checkpoint has that one's
            state, and each process of a DataLoader one of its own, so that a resumed run draws the same parts.
    """

    def __init__(self, images: LabelledImages, settings: Settings, augment: bool = False) -> None:
        self.images = images
        self.settings = settings
        self.view = random_view if augment else whole_view

    def __len__(self) -> int:
        return len(self.images.ids)

    def __getitem__(self, row: int) -> dict[str, Any]:
        view = self.view(load(self.images.images[row]), self.settings.size)
        return {"pixel_values": to_pixels(view, self.settings), "labels": self.images.ids[row]}


def load(image: Any) -> Any:
    """An image in red, green and blue, the right way up.

    Raises:
        MisconfigurationException: for a file that is cut off, damaged or gone.
    """
    from PIL import Image, ImageOps

    if isinstance(image, Image.Image):
        return image
    try:
        with Image.open(image) as file:
            return ImageOps.exif_transpose(file).convert("RGB")
    except Exception as error:  # Pillow raises of every kind
        raise MisconfigurationException(_unreadable(image, error)) from error
