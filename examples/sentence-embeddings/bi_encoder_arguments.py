"""Defines the script's arguments: model, pairs, and defaults for the embedded pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mps_trainer.scripts.flags import OneLineParser, check_types, given
from mps_trainer.scripts.loading import require_dataset, require_folder_or_name, require_packages

NAME = "train_bi_encoder.py"
# no_duplicates: MultipleNegativesRankingLoss takes every other positive of a batch for a wrong answer
DEFAULTS = {
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "warmup_steps": 0.1,
    "batch_sampler": "no_duplicates",
    "fast_dropout": True,
    "logging_steps": 50,
    "save_strategy": "epoch",
    "save_total_limit": 1,
}
# For the tiny model, whose weights are random.
EMBEDDED_DEFAULTS = {"learning_rate": 1e-3, "num_train_epochs": 5.0, "logging_steps": 20}


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Folder of a pretrained model, or its name on the hub. [a tiny BERT]"}
    )
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model on the hub."})
    max_seq_length: int | None = field(default=None, metadata={"help": "Tokens of a text. [as the model has it]"})
    scale: float = field(default=20.0, metadata={"help": "The loss multiplies cosine similarities by it."})

    def __post_init__(self) -> None:
        check_types(self)
        require_folder_or_name("model_name_or_path", self.model_name_or_path, "config.json, tokenizer and weights")
        if self.max_seq_length is not None and self.max_seq_length < 2:
            raise ValueError(f"max_seq_length={self.max_seq_length} is not accepted: it must be at least 2.")
        if not 0 < self.scale < float("inf"):
            raise ValueError(f"scale={self.scale} is not accepted: it must be above 0.")


@dataclass
class DataArguments:
    dataset_name: str | None = field(
        default=None,
        metadata={"help": "File (json, jsonl, csv, parquet), folder, or dataset on the hub: questions in the first "
                          "column, answers in the second, wrong answers in further ones."},
    )  # fmt: skip
    dataset_config: str | None = field(default=None, metadata={"help": "Which of the dataset's configurations."})
    dataset_train_split: str = field(default="train", metadata={"help": "The split to train on."})
    dataset_test_split: str = field(
        default="test", metadata={"help": "The split to evaluate on. [a tenth of the other if there is none]"}
    )
    embedded: bool = field(
        default=False, metadata={"help": "Train on the pairs that come with this script. [without --dataset_name]"}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many pairs."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many pairs."})

    def __post_init__(self) -> None:
        check_types(self)
        if self.embedded and self.dataset_name is not None:
            raise ValueError("--embedded and --dataset_name are two sources of pairs: give one of them.")
        require_dataset(self.dataset_name)
        for limit in ("max_train_samples", "max_eval_samples"):
            if (count := getattr(self, limit)) is not None and count < 1:
                raise ValueError(f"{limit}={count} is not accepted: it must be at least 1.")


def parse(argv: list[str]) -> tuple[ModelArguments, DataArguments, Any]:
    """Returns the arguments from the command line; the last are sentence-transformers'.

    Raises:
        MisconfigurationException: for missing packages, unknown flags, and values that cannot be right.
    """
    require_packages(NAME, ("sentence_transformers", "datasets", "accelerate"), "libraries")
    from sentence_transformers import SentenceTransformerTrainingArguments

    parser = OneLineParser(
        (ModelArguments, DataArguments, SentenceTransformerTrainingArguments),
        prog=NAME,
        description="Train sentence embeddings on pairs with MultipleNegativesRankingLoss.",
        allow_abbrev=False,
    )
    is_tiny = "model_name_or_path" not in given(argv)
    parser.set_defaults(**{**DEFAULTS, **(EMBEDDED_DEFAULTS if is_tiny else {})})
    model_args, data_args, training_args = parser.parse(argv)
    if is_tiny and data_args.dataset_name is not None:
        parser.error(
            "--model_name_or_path is missing: give a model's folder or name. The tiny model knows the embedded pairs' "
            "words alone"
        )
    return model_args, data_args, training_args
