"""Defines the script's arguments: model, adapter, text, and defaults for the embedded text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mps_trainer import TrainingArguments
from mps_trainer.scripts.flags import OneLineParser, check_types, given

NAME = "run_lora.py"
EMBEDDED = Path(__file__).parent / "embedded" / "harbour.txt"
DEFAULTS = {"learning_rate": 2e-4, "logging_steps": 10, "save_strategy": "epoch", "save_total_limit": 1}
# For a tiny model that begins with random weights: embeddings and head know no word yet, so they are trained as well.
EMBEDDED_DEFAULTS = {
    "block_size": 32,
    "learning_rate": 5e-3,
    "num_train_epochs": 15.0,
    "modules_to_save": ["embed_tokens", "lm_head"],
    "prompt": "Monday. The wind",
}


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Folder of a pretrained model, or its name on the hub."}
    )
    lora_r: int = field(default=8, metadata={"help": "Rank of the matrices that are trained."})
    lora_alpha: float = field(default=16.0, metadata={"help": "What they add is scaled by lora_alpha / lora_r."})
    lora_dropout: float = field(default=0.05, metadata={"help": "Dropout before them, from 0 to below 1."})
    target_modules: list[str] | None = field(
        default=None, metadata={"help": "Names of layers that get them, or all-linear. [as PEFT has it for the model]"}
    )
    modules_to_save: list[str] | None = field(
        default=None, metadata={"help": "Names of layers that are trained and saved as a whole."}
    )
    merge: bool = field(default=False, metadata={"help": "Also write the model with the adapter in its weights."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where to keep what the hub sends. [HF_HOME]"})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model on the hub."})
    token: str | None = field(
        default=None, metadata={"help": "Token for the hub. [the one stored by `hf auth login`]"}
    )

    def __post_init__(self) -> None:
        check_types(self)
        if self.lora_r < 1:
            raise ValueError(f"lora_r={self.lora_r} is not accepted: it must be at least 1.")
        if not 0 < self.lora_alpha < float("inf"):
            raise ValueError(f"lora_alpha={self.lora_alpha} is not accepted: it must be above 0.")
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"lora_dropout={self.lora_dropout} is not accepted: it must be from 0 to below 1.")


@dataclass
class DataArguments:
    train_file: str | None = field(
        default=None, metadata={"help": "Text: a .txt file, or a .jsonl file with a field `text` in each line."}
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "Text to measure perplexity on. [a tenth of train_file]"}
    )
    embedded: bool = field(
        default=False, metadata={"help": "Train a tiny model on the diary that comes with this script."}
    )
    block_size: int = field(default=256, metadata={"help": "Tokens of an example; the text is cut into such blocks."})
    prompt: str | None = field(default=None, metadata={"help": "What the sample goes on from. [held-back text]"})
    sample_tokens: int = field(default=40, metadata={"help": "Tokens of the sample."})

    def __post_init__(self) -> None:
        check_types(self)
        if self.embedded and self.train_file is not None:
            raise ValueError("--embedded and --train_file are two sources of text: give one of them.")
        if not self.embedded and self.train_file is None:
            raise ValueError(
                "--train_file is missing: give a .txt or .jsonl file with text, or --embedded for the diary that "
                "comes with this script."
            )
        for name, least in (("block_size", 2), ("sample_tokens", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} is not accepted: it must be at least {least}.")
        for file in filter(None, (self.train_file, self.validation_file)):
            if Path(file).suffix.lower() not in (".txt", ".jsonl"):
                raise ValueError(f"{file} is neither a .txt nor a .jsonl file, by its name.")
            if not Path(file).is_file():
                raise ValueError(f"{file} does not exist, or is not a file.")


Arguments = tuple[ModelArguments, DataArguments, TrainingArguments]


def parse(argv: list[str]) -> Arguments:
    """The arguments from the command line.

    Raises:
        MisconfigurationException: for unknown flags, and for values that cannot be right.
    """
    parser = OneLineParser(
        (ModelArguments, DataArguments, TrainingArguments),
        prog=NAME,
        description="Fine-tune a causal language model on text, by LoRA.",
        allow_abbrev=False,
    )
    embedded = "embedded" in given(argv)
    settings: dict[str, Any] = {**DEFAULTS, **(EMBEDDED_DEFAULTS if embedded else {})}
    if "model_name_or_path" in given(argv):
        settings.pop("modules_to_save", None)
    parser.set_defaults(**settings)
    model_args, data_args, training_args = parser.parse(argv)
    if data_args.embedded:
        data_args.train_file = str(EMBEDDED)
    elif model_args.model_name_or_path is None:
        parser.error("--model_name_or_path is missing: give a model's folder or name, or --embedded for a tiny one")
    return model_args, data_args, training_args
