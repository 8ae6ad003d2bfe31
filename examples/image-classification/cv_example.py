#!/usr/bin/env python
"""Trains a model to tell images apart, with the flags of Accelerate's cv_example.py and complete_cv_example.py.

    python cv_example.py --embedded

trains a small ResNet on shapes that are drawn on the spot;

    python cv_example.py --data_dir images

on a folder with images called <label>_<number>.jpg, or with a folder for each label. It picks the best device.
`--help` lists every flag.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cv_arguments import NAME, ImageArguments, parse
from cv_data import LabelledImages, Rows, find_images, split
from cv_model import load_model, read_settings, require_size, write_settings

from mps_trainer import TrainingArguments
from mps_trainer.distributed import Processes
from mps_trainer.scripts import run, set_up_logging


def main(argv: list[str] | None = None) -> int:
    """Runs the script; gives the exit status, as `mps_trainer.scripts.run` has it."""
    return run(NAME, lambda: parse(sys.argv[1:] if argv is None else argv), prepare, do)


@dataclass(frozen=True)
class Job:
    """A Trainer, how its images are made for the model, where they are from, and the checkpoint to go on from."""

    trainer: Any
    settings: Any
    source: str
    checkpoint: str | None


def prepare(image_args: ImageArguments, training_args: TrainingArguments) -> Job:
    """Everything that comes before training, and that finds out whether there can be any."""
    processes = Processes.of(training_args)  # first of all: a device that cannot be had is known in seconds
    from mps_trainer.checkpoints.folders import checkpoint_to_resume

    checkpoint = processes.first_does(
        lambda: checkpoint_to_resume(training_args.resume_from_checkpoint, training_args.output_dir)
    )
    images = load_images(image_args)
    set_up_logging(training_args)
    from transformers import set_seed

    set_seed(training_args.seed)  # before the model: a head that is new begins with random weights
    model = load_model(image_args, images.labels, training_args)
    settings = read_settings(image_args, model)
    require_size(model, settings.size)
    source = "drawn shapes" if image_args.embedded else f"{Path(str(image_args.data_dir)).resolve().name} images"
    return Job(make_trainer(model, images, settings, training_args), settings, source, checkpoint)


def do(job: Job) -> None:
    trainer = job.trainer
    result = trainer.train(resume_from_checkpoint=job.checkpoint)
    trainer.save_model()
    if trainer.is_world_process_zero():
        write_settings(trainer.args.output_dir, job.settings)
    for kind, metrics in (("train", result.metrics), ("eval", last_evaluation(trainer))):
        metrics = {**metrics, f"{kind}_samples": len(getattr(trainer, f"{kind}_dataset"))}
        trainer.log_metrics(kind, metrics)
        trainer.save_metrics(kind, metrics)
    trainer.save_state()
    write_card = trainer.push_to_hub if trainer.args.push_to_hub else trainer.create_model_card
    write_card(tasks="image-classification", dataset=job.source)


def load_images(image_args: ImageArguments) -> LabelledImages:
    if not image_args.embedded:
        return find_images(str(image_args.data_dir))
    from cv_shapes import draw_shapes

    return draw_shapes()


def make_trainer(model: Any, images: LabelledImages, settings: Any, training_args: TrainingArguments) -> Any:
    from mps_trainer import Trainer

    train, validation = split(images, training_args.seed)
    return Trainer(
        model=model,
        args=training_args,
        train_dataset=Rows(train, settings, augment=True),
        eval_dataset=Rows(validation, settings),
        compute_metrics=accuracy,
    )


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(axis=-1) == prediction.label_ids).mean())}


def last_evaluation(trainer: Any) -> dict[str, float]:
    """The metrics of the trained model: those of the last epoch, if it ended with an evaluation."""
    entry = next((entry for entry in reversed(trainer.state.log_history) if "eval_loss" in entry), None)
    if entry is None or entry["step"] != trainer.state.global_step or trainer.args.load_best_model_at_end:
        return trainer.evaluate()
    return {name: value for name, value in entry.items() if name != "step"}


if __name__ == "__main__":
    sys.exit(main())
