#!/usr/bin/env python
"""Fine-tunes a pretrained model to classify images: python train.py --dataset_name FOLDER --output_dir OUT"""

import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
from transformers import AutoImageProcessor, AutoModelForImageClassification, set_seed

from mps_trainer import MisconfigurationException, Trainer, TrainingArguments
from mps_trainer.scripts import checkpoint_to_resume, one_line_errors
from mps_trainer.scripts.flags import OneLineParser
from mps_trainer.scripts.loading import errors_about_model
from mps_trainer.scripts.tables import load_splits, require_columns, sample


@dataclass
class Arguments:
    model_name_or_path: str = "google/vit-base-patch16-224-in21k"  # on the hub, or a folder
    dataset_name: str = "AI-Lab-Makerere/beans"  # on the hub, or a folder with a folder of images for each label
    dataset_config_name: str | None = None  # for a dataset with several configurations
    image_column_name: str | None = None  # without it, `image` or `img`
    label_column_name: str | None = None  # without it, the first column with names of labels
    max_train_samples: int | None = None  # train on so many images, drawn at random
    max_eval_samples: int | None = None


# A batch reads its images when it is needed, so the Trainer must keep their column. The best epoch is kept.
DEFAULTS = {"remove_unused_columns": False, "eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 2}
DEFAULTS |= {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}


# Worker processes import this function by its name, so it is not inside another one.
def to_pixels(rows, processor, image, label):
    images = [picture.convert("RGB") for picture in rows[image]]
    return {"pixel_values": processor(images, return_tensors="pt")["pixel_values"], "labels": rows[label]}


def accuracy(output):
    return {"accuracy": np.mean(output.predictions.argmax(-1) == output.label_ids)}


def load_pretrained(name, labels):
    with errors_about_model(name):
        processor = AutoImageProcessor.from_pretrained(name)
        model = AutoModelForImageClassification.from_pretrained(
            name, num_labels=len(labels), ignore_mismatched_sizes=True
        )
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {name: i for i, name in enumerate(labels)}
    return model, processor


@one_line_errors("train.py")
def main() -> None:
    script, args = OneLineParser((Arguments, TrainingArguments), description=__doc__).parse(sys.argv[1:], **DEFAULTS)
    train, held = load_splits(script.dataset_name, script.dataset_config_name)
    for flag in ("image_column_name", "label_column_name"):
        if (name := getattr(script, flag)) is not None:
            require_columns(train, flag, name)
    classes = [name for name, feature in train.features.items() if hasattr(feature, "names")]
    label = script.label_column_name or next(iter(classes), None)
    image = script.image_column_name or next((name for name in train.column_names if name in ("image", "img")), None)
    if label not in classes or image is None or not hasattr(train.features[image], "decode_example"):
        raise MisconfigurationException(
            f"{script.dataset_name} has no images with labels; its columns are {', '.join(train.column_names)}. Give "
            "--dataset_name a folder with a folder of images for each label, or --image_column_name and "
            "--label_column_name, whose labels have names."
        )
    train, held = sample(train, script.max_train_samples), sample(held, script.max_eval_samples)

    set_seed(args.seed)  # before the model, whose new head has random weights
    model, processor = load_pretrained(script.model_name_or_path, train.features[label].names)
    transform = partial(to_pixels, processor=processor, image=image, label=label)
    trainer = Trainer(
        model,
        args,
        train_dataset=train.with_transform(transform),
        eval_dataset=held.with_transform(transform),
        processing_class=processor,
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=checkpoint_to_resume(args))
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    sys.exit(main())
