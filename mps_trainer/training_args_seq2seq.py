"""Defines `Seq2SeqTrainingArguments`: `TrainingArguments` with generation settings."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from .arguments.fields import documented, option
from .training_args import TrainingArguments


@documented
@dataclass
class Seq2SeqTrainingArguments(TrainingArguments):
    """`TrainingArguments` for models that generate text.

    Raises:
        ValueError: for a value that cannot be right; names the field, the value and what is accepted.
    """

    sortish_sampler: bool = option(False, "Has no effect; train_sampling_strategy=group_by_length sorts by length.")
    predict_with_generate: bool = option(False, "Evaluate and predict with generated text instead of logits.")
    generation_max_length: int | None = option(
        None, "Maximum length of generated text, in tokens. [the model's configuration]", ge=1
    )
    generation_num_beams: int | None = option(None, "Number of beams. [the model's configuration]", ge=1)
    # A GenerationConfig as well; its class is not named here, because it needs torch.
    generation_config: str | Path | None = option(
        None, "Generation settings: a GenerationConfig, the path of one, or the name of a model on the hub."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sortish_sampler:
            warnings.warn(
                "sortish_sampler=True has no effect. Use train_sampling_strategy='group_by_length'.",
                UserWarning,
                stacklevel=3,
            )
