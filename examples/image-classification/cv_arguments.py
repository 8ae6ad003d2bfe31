"""Defines the script's arguments: Accelerate's flags, translated for the Trainer."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from mps_trainer import MisconfigurationException, TrainingArguments
from mps_trainer.scripts.flags import OneLineParser, check_types, given

NAME = "cv_example.py"
PRECISIONS = ("no", "fp16", "bf16")
DEFAULTS = {
    "per_device_train_batch_size": 64,
    "per_device_eval_batch_size": 64,
    "eval_strategy": "epoch",
    "logging_steps": 10,
    "save_strategy": "no",
}
# For a model that begins with random weights; a pretrained one wants the usual defaults.
FROM_RANDOM_WEIGHTS = {"learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 0.1}
EMBEDDED = {"num_train_epochs": 10.0, "per_device_train_batch_size": 32}


@dataclass
class ImageArguments:
    data_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with images called <label>_<number>.jpg, or with a folder for each label."},
    )
    embedded: bool = field(default=False, metadata={"help": "Train on shapes that are drawn on the spot."})
    mixed_precision: str | None = field(
        default=None,
        metadata={"help": "no, fp16 or bf16. [ACCELERATE_MIXED_PRECISION, which the launchers set, or no]"},
    )
    cpu: bool = field(default=False, metadata={"help": "Train on the CPU, whatever else there is."})
    checkpointing_steps: str | None = field(
        default=None, metadata={"help": "Save a checkpoint every so many steps, or after each `epoch`. [none]"}
    )
    with_tracking: bool = field(default=False, metadata={"help": "Report to every tracker that is installed."})
    project_dir: str = field(default="logs", metadata={"help": "Where TensorBoard's files go with --with_tracking."})
    image_size: int | None = field(default=None, metadata={"help": "Pixels of a side. [the model's, 224, or 32]"})
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Folder of a pretrained model, or its name on the hub. [a small ResNet]"}
    )
    freeze_backbone: bool = field(default=False, metadata={"help": "Train the head of a pretrained model alone."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where to keep what the hub sends. [HF_HOME]"})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model on the hub."})
    token: str | None = field(
        default=None, metadata={"help": "Token for the hub. [the one stored by `hf auth login`]"}
    )

    def __post_init__(self) -> None:
        check_types(self)
        if self.embedded and self.data_dir is not None:
            raise ValueError("--embedded and --data_dir are two sources of images: give one of them.")
        if not self.embedded and self.data_dir is None:
            raise ValueError(
                "--data_dir is missing: give a folder with images called <label>_<number>.jpg, or --embedded for "
                "shapes that are drawn on the spot."
            )
        if self.freeze_backbone and self.model_name_or_path is None:
            raise ValueError("--freeze_backbone needs --model_name_or_path: random weights have to be trained.")
        if self.image_size is not None and not 16 <= self.image_size <= 4096:
            raise ValueError(f"image_size={self.image_size} is not accepted: it must be from 16 to 4096.")
        steps = self.checkpointing_steps
        if steps is not None and steps != "epoch" and not _is_count(steps):
            raise ValueError(
                f"--checkpointing_steps {steps!r} is not accepted: it must be a whole number of steps, or epoch."
            )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0


def parse(argv: list[str]) -> tuple[ImageArguments, TrainingArguments]:
    """The arguments from the command line.

    Raises:
        MisconfigurationException: for unknown flags, and for values that cannot be right.
    """
    parser = OneLineParser(
        (ImageArguments, TrainingArguments),
        prog=NAME,
        description="Train a model to tell images apart.",
        allow_abbrev=False,
    )
    named = given(argv)
    parser.set_defaults(**DEFAULTS)
    if "model_name_or_path" not in named:
        parser.set_defaults(**FROM_RANDOM_WEIGHTS)
    if "embedded" in named:
        parser.set_defaults(**EMBEDDED)
    image_args, training_args = parser.parse(argv)
    use_precision(image_args, training_args)
    if image_args.cpu:
        training_args.use_cpu = True
    if image_args.checkpointing_steps is not None:
        if named & {"save_strategy", "save_steps"}:
            parser.error("--checkpointing_steps says when to save, as --save_strategy and --save_steps do: give one")
        training_args.save_strategy = "epoch" if image_args.checkpointing_steps == "epoch" else "steps"
        if image_args.checkpointing_steps != "epoch":
            training_args.save_steps = int(image_args.checkpointing_steps)
    if image_args.with_tracking and "report_to" not in named:
        use_trackers(image_args, training_args)
    training_args.check()
    return image_args, training_args


def use_precision(image_args: ImageArguments, training_args: TrainingArguments) -> None:
    """Applies --mixed_precision. Without it, TrainingArguments read --fp16, --bf16 or the launcher."""
    wanted = image_args.mixed_precision
    if wanted is None:
        return
    if wanted.lower() not in PRECISIONS:
        raise MisconfigurationException(
            f"--mixed_precision is {wanted!r}, and {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]} is expected."
        )
    if (training_args.fp16 or training_args.bf16) and wanted.lower() != training_args.mixed_precision:
        raise MisconfigurationException(
            f"--mixed_precision {wanted} and --{training_args.mixed_precision} contradict each other: give one."
        )
    training_args.mixed_precision = wanted.lower()


def use_trackers(image_args: ImageArguments, training_args: TrainingArguments) -> None:
    from transformers.integrations import get_available_reporting_integrations

    if not get_available_reporting_integrations():
        raise MisconfigurationException(
            "--with_tracking needs a tracker, and none is installed. Install one: pip install tensorboard."
        )
    training_args.report_to = ["all"]
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", image_args.project_dir)
