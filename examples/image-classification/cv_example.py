#!/usr/bin/env python
"""Learns classes from images' names, with the flags of Accelerate's script: python cv_example.py --data_dir FOLDER"""

import os
import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from train import accuracy, load_pretrained, to_pixels
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessorPil, set_seed
from transformers.integrations import get_available_reporting_integrations

from mps_trainer import MisconfigurationException, Trainer, TrainingArguments
from mps_trainer.scripts import one_line_errors
from mps_trainer.scripts.flags import OneLineParser
from mps_trainer.scripts.loading import errors_about


@dataclass
class Arguments:
    data_dir: str  # a folder of images called <class>_<number>.jpg
    model_name_or_path: str | None = None  # on the hub, or a folder; without it, a small ResNet with random weights
    mixed_precision: Literal["no", "fp16", "bf16"] | None = None  # without it, --fp16, --bf16 or the launcher decides
    cpu: bool = False
    checkpointing_steps: str | None = None  # save a checkpoint every so many steps, or after each `epoch`
    with_tracking: bool = False  # log to every tracker that is installed
    project_dir: str = "logs"  # TensorBoard writes its files there


DEFAULTS = {"per_device_train_batch_size": 64, "per_device_eval_batch_size": 64, "logging_steps": 10}
DEFAULTS |= {"learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 0.1}
DEFAULTS |= {"eval_strategy": "epoch", "save_strategy": "no"}
SMALL = {"embedding_size": 32, "hidden_sizes": [32, 64, 128], "depths": [1, 1, 1], "layer_type": "basic"}
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
INSTEAD = "Call each image <class>_<number>.jpg, as in beagle_32.jpg. For a folder of each class, use train.py."


def parse(argv):
    """Returns the script's arguments and those of the Trainer, with Accelerate's flags applied to them."""
    parser = OneLineParser((Arguments, TrainingArguments), description=__doc__)
    # A batch reads its images when it is needed, so the Trainer must keep their column.
    script, args = parser.parse(argv, remove_unused_columns=False, **DEFAULTS)
    args.use_cpu |= script.cpu
    if script.mixed_precision is not None:
        if (args.fp16 or args.bf16) and script.mixed_precision != args.mixed_precision:
            parser.error(f"--mixed_precision {script.mixed_precision} contradicts --{args.mixed_precision}: give one")
        args.mixed_precision = script.mixed_precision
    if steps := script.checkpointing_steps:
        if not re.fullmatch(r"epoch|[1-9]\d{0,8}", steps):
            parser.error(f"--checkpointing_steps {steps[:20]} is neither a number of steps nor epoch")
        args.save_strategy = "epoch" if steps == "epoch" else "steps"
        args.save_steps = args.save_steps if steps == "epoch" else int(steps)
    if script.with_tracking:
        if not get_available_reporting_integrations():
            parser.error("--with_tracking needs a tracker, and none is installed: install tensorboard")
        args.report_to = "all"
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", script.project_dir)
    args.check()
    return script, args


def load_images(folder, seed):
    """Returns the images to train on, the fifth of them that is held back, and the classes."""
    from datasets import ClassLabel, Dataset, Features, Image

    if not os.path.isdir(folder):
        raise MisconfigurationException(f"--data_dir {folder} is not a folder. Name one that has images in it.")
    with errors_about("folder", folder, INSTEAD):
        paths = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in SUFFIXES)
        paths = [path for path in paths if not path.name.startswith(".")]  # Finder's
        if not paths:
            raise MisconfigurationException(f"--data_dir {folder} has no images. {INSTEAD}")
        names = [re.fullmatch(r"(.+)_\d+", path.stem) for path in paths]
        if None in names:
            raise MisconfigurationException(f"{paths[names.index(None)]} has no class in its name. {INSTEAD}")
        classes = sorted({name[1] for name in names})
        if len(classes) == 1:
            raise MisconfigurationException(f"All images in {folder} are of the class {classes[0]}; two are needed.")
        columns = {"image": list(map(str, paths)), "label": [classes.index(name[1]) for name in names]}
        rows = Dataset.from_dict(columns, Features(image=Image(), label=ClassLabel(names=classes)))
        parts = rows.train_test_split(0.2, seed=seed)
    return parts["train"], parts["test"], classes


def load_model(name, classes):
    """Returns a small ResNet with random weights, or a pretrained model of which only the head trains."""
    if name is None:
        names = {"id2label": dict(enumerate(classes)), "label2id": {name: i for i, name in enumerate(classes)}}
        return ResNetForImageClassification(ResNetConfig(**SMALL, **names)), ViTImageProcessorPil()
    model, processor = load_pretrained(name, classes)
    model.base_model.requires_grad_(False)
    return model, processor


@one_line_errors("cv_example.py")
def main() -> None:
    script, args = parse(sys.argv[1:])
    train, held, classes = load_images(script.data_dir, args.seed)
    set_seed(args.seed)  # before the model, which has random weights
    model, processor = load_model(script.model_name_or_path, classes)
    transform = partial(to_pixels, processor=processor, image="image", label="label")
    trainer = Trainer(
        model,
        args,
        train_dataset=train.with_transform(transform),
        eval_dataset=held.with_transform(transform),
        processing_class=processor,
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    sys.exit(main())
