"""Defines `Seq2SeqTrainer`, which evaluates and predicts with generated text."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.trainer_utils import PredictionOutput

from .evaluation import generation
from .evaluation.evaluator import evaluate_each
from .loop.loss_divisors import loss_in_outputs
from .trainer import Trainer


class Seq2SeqTrainer(Trainer):
    """Generates text in evaluations if `args.predict_with_generate` is set, like transformers' `Seq2SeqTrainer`.

    `args` are `Seq2SeqTrainingArguments`. With `args.generation_config` the model generates by it.
    """

    args: Any
    model: Any
    _gen_kwargs: dict[str, Any] | None = None  # the evaluation or prediction that runs sets it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = getattr(self.args, "generation_config", None)
        if given is not None:
            self.model.generation_config = self.load_generation_config(given)

    load_generation_config = staticmethod(generation.load_generation_config)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluates like `Trainer.evaluate`. `gen_kwargs` go to generate() and override the arguments."""
        if isinstance(self.eval_dataset if eval_dataset is None else eval_dataset, dict):
            return evaluate_each(self, eval_dataset, metric_key_prefix, ignore_keys=ignore_keys, **gen_kwargs)
        self._gen_kwargs = generation.with_defaults(gen_kwargs, self.args)
        return super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """Predicts like `Trainer.predict`. The predictions are generated tokens, padded to one length."""
        self._gen_kwargs = generation.with_defaults(gen_kwargs, self.args)
        return super().predict(test_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Returns loss, generated tokens and labels of one batch, padded to the maximum length."""
        if not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            tokens = generation.generate(self.model, inputs, gen_kwargs or self._gen_kwargs or {})
        loss, labels = None, inputs.get("labels")
        if labels is not None:
            with torch.no_grad(), self.compute_loss_context_manager():
                outputs = model(**inputs)
            smoother = self.label_smoother
            loss = loss_in_outputs(outputs, inputs) if smoother is None else smoother(outputs, labels)
            loss = loss.detach().mean()
        if self.args.prediction_loss_only:
            return loss, None, None
        config, pad = self.model.generation_config, self._pad_tensors_to_max_len
        tokens = generation.padded_to_longest(tokens, config, pad)
        return loss, tokens, None if labels is None else generation.padded_to_longest(labels, config, pad)

    def _pad_tensors_to_max_len(self, tensor: torch.Tensor, max_length: int) -> torch.Tensor:
        """Returns `tensor`, batch x length, padded on the right with the tokenizer's or the model's padding.

        Raises:
            MisconfigurationException: if neither has a token for it.
        """
        return generation.padded(tensor, max_length, self.processing_class, self.model)
