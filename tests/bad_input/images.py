"""Flags, folders and files of the example that classifies images."""

from __future__ import annotations

import io
import json

from .cases import Case, split


def picture(kind="JPEG", side=20):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (200, 30, 30)).save(buffer, kind)
    return buffer.getvalue()


PICTURE = picture()
IMAGES = {f"images/{label}_{i}.jpg": PICTURE for label in ("cat", "dog") for i in range(5)}
WORDS = ("--data_dir", "images", "--image_size", "32", "--max_steps", "1", "--disable_tqdm", "True")


def images(name, says, words="", files=IMAGES, **more):
    command = (*WORDS, *split(words), "--output_dir", "out")
    return Case(f"images: {name}", command, says, files, program="cv_example.py", **more)


def _other(folder, **settings):
    """Makes a folder with a configuration and no weights."""
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(settings))


def _vit(folder):
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    ViTForImageClassification(ViTConfig(**sizes, image_size=48)).save_pretrained(folder / "model")


FOLDERS = [
    images("no folder", "--data_dir images is not a folder. Name one that has images", files={}),
    images(
        "an empty folder",
        ["--data_dir images has no images", "<label>_<number>.jpg"],
        files={},
        make=lambda folder: (folder / "images").mkdir(),
    ),
    images("a folder without images", "--data_dir images has no images", files={"images/notes.txt": "cat"}),
    images("only what Finder leaves", "--data_dir images has no images", files={"images/._cat_1.jpg": PICTURE}),
    images("a folder of a label without images", "images/dog has no images", files={"images/dog/notes.txt": ""}),
    images("one label", "All images in images have the label 'cat'", files={"images/cat_1.jpg": PICTURE}),
]
FILES = [
    images("a name without a number", "images/cat.jpg has no label in its name", files={"images/cat.jpg": PICTURE}),
    images("a name without a label", "images/_7.jpg has no label in its name", files={"images/_7.jpg": PICTURE}),
    images("text for an image", "images/dog_9.jpg is no image that can", files={**IMAGES, "images/dog_9.jpg": "dog"}),
    images("a folder for an image", "images/dog_9.jpg is", make=lambda folder: (folder / "images/dog_9.jpg").mkdir()),
    images(
        "images that are all cut off",
        ["_", ".jpg is no image that can be read", "truncated"],
        files={name: picture(side=200)[:-300] for name in IMAGES},
    ),
]
FLAGS = [
    Case("images: nothing to train on", (), ["--data_dir is missing", "--embedded"], program="cv_example.py"),
    images("two sources", "--embedded and --data_dir are two sources", "--embedded"),
    images("a precision of Accelerate's that a Mac has not", "--mixed_precision is 'fp8'", "--mixed_precision fp8"),
    images(
        "such a precision from a launcher",
        "ACCELERATE_MIXED_PRECISION is 'fp8'",
        environ={"ACCELERATE_MIXED_PRECISION": "fp8"},
    ),
    images("a word for steps", "--checkpointing_steps 'often'", "--checkpointing_steps often"),
    images("steps of many digits", "--checkpointing_steps '99", f"--checkpointing_steps {'9' * 5000}"),
    images("two times to save", "give one", "--checkpointing_steps 2 --save_strategy epoch"),
    images("a size of 1", "image_size=1 is not accepted", "--image_size 1"),
    images("a backbone of random weights", "--freeze_backbone needs --model_name_or_path", "--freeze_backbone"),
]
MODELS = [
    images("no such model", "./gone is not a folder", "--model_name_or_path ./gone"),
    images(
        "a model of texts",
        "model cannot be loaded",
        "--model_name_or_path model",
        make=lambda folder: _other(folder, model_type="bert"),
    ),
    images(
        "a model without weights",
        "The model model cannot be loaded",
        "--model_name_or_path model",
        make=lambda folder: _other(folder, model_type="resnet"),
    ),
    images(
        "a size that the model does not take",
        ["The model takes no images of 32 pixels", "48*48", "Leave --image_size out"],
        "--model_name_or_path model",
        make=_vit,
    ),
    images(
        "a model of grey images",
        "takes images of 1 channels",
        "--model_name_or_path model",
        make=lambda folder: _other(folder, model_type="resnet", num_channels=1),
    ),
]

IMAGE_CASES = [*FLAGS, *FOLDERS, *FILES, *MODELS]
