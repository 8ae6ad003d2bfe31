"""Applies the arguments of a Trainer: defaults, seeds, and settings of other libraries."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers.trainer_pt_utils import LabelSmoother
from transformers.trainer_utils import enable_full_determinism, set_seed
from transformers.utils import logging as transformers_logging

from .arguments.deprecated import DROPPED_IN
from .errors import MisconfigurationException
from .model.precision import set_tf32
from .training_args import TrainingArguments


def apply_arguments(args: TrainingArguments) -> None:
    """Seeds the generators and sets log level, accumulation steps and TF32 from the arguments.

    Raises:
        MisconfigurationException: if the accumulation steps are given twice.
    """
    seed_all(args)
    level = args.get_process_log_level()
    transformers_logging.set_verbosity(level)
    if args.log_level != "passive":
        logging.getLogger(__package__.partition(".")[0]).setLevel(level)
    config: Any = args.accelerator_config
    steps = (config.gradient_accumulation_kwargs or {}).get("num_steps")
    if steps is not None and args.gradient_accumulation_steps > 1:
        raise MisconfigurationException(
            "The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is greater than 1: "
            "both say how many batches make an update. Leave one of them out."
        )
    args.gradient_accumulation_steps = steps or args.gradient_accumulation_steps
    set_tf32(args.device, args.tf32)


def seed_all(args: TrainingArguments) -> None:
    """Seeds every random number generator with `args.seed`."""
    if args.full_determinism:
        enable_full_determinism(args.seed)
    else:
        set_seed(args.seed)


def processing_class_of(processing_class: Any, tokenizer: Any) -> Any:
    """Returns the one that is given, and warns about the deprecated name `tokenizer`."""
    if tokenizer is None:
        return processing_class
    warnings.warn(
        f"`Trainer(tokenizer=...)` is deprecated and will be removed in mps_trainer {DROPPED_IN}. "
        "Use `processing_class`.",
        FutureWarning,
        stacklevel=3,
    )
    if processing_class is not None and processing_class is not tokenizer:
        raise MisconfigurationException(
            "tokenizer and processing_class are the same argument: give only processing_class."
        )
    return tokenizer


def warn_of_tokenizer() -> None:
    """Warns about the deprecated attribute `tokenizer` of a Trainer."""
    warnings.warn(
        f"`Trainer.tokenizer` is deprecated and will be removed in mps_trainer {DROPPED_IN}. Use `processing_class`.",
        FutureWarning,
        stacklevel=3,
    )


def default_collator(processing_class: Any) -> Callable:
    """Returns the collator that pads with `processing_class` if that can pad batches, else transformers' default."""
    from transformers import PreTrainedTokenizerBase, SequenceFeatureExtractor
    from transformers.data.data_collator import DataCollatorWithPadding, default_data_collator

    # image processors have a pad() as well, which is not for batches
    pads = isinstance(processing_class, (PreTrainedTokenizerBase, SequenceFeatureExtractor))
    return DataCollatorWithPadding(processing_class) if pads else default_data_collator


def label_smoother(args: TrainingArguments, model: nn.Module) -> LabelSmoother | None:
    """Returns a label smoother if the arguments ask for one and the model's labels support it, else None."""
    if not args.label_smoothing_factor:
        return None
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        warnings.warn(
            "Label smoothing is not compatible with multi-label classification, which the model's config asks: "
            "it spreads the probability of the one right label. label_smoothing_factor is left out.",
            UserWarning,
            stacklevel=3,
        )
        return None
    return LabelSmoother(args.label_smoothing_factor)


def forget_model(trainer: Any) -> None:
    """Frees the model and the optimizer of an earlier run, before there is another model."""
    for owner in (trainer, trainer.callback_handler):
        owner.model = owner.optimizer = owner.lr_scheduler = None
    trainer.model_wrapped = None
