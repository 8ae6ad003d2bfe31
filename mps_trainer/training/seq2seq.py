"""`Seq2SeqTrainer`: evaluation and prediction on what the model generates."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig
from transformers.trainer_utils import PredictionOutput

from ..errors import MisconfigurationException
from .loss import loss_of
from .trainer import Trainer


class Seq2SeqTrainer(Trainer):
    """A `Trainer` whose evaluations generate, if `args.predict_with_generate` is set; transformers' `Seq2SeqTrainer`.

    `args` are `Seq2SeqTrainingArguments`. With `args.generation_config` the model generates by it.
    """

    _gen_kwargs: dict[str, Any] | None = None  # of the evaluation or prediction that runs

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = getattr(self.args, "generation_config", None)
        if given is not None:
            self._generator.generation_config = self.load_generation_config(given)

    @staticmethod
    def load_generation_config(gen_config_arg: str | Path | GenerationConfig) -> GenerationConfig:
        """Settings of generation: a copy of those given, or read from a file, a folder or the hub.

        Raises:
            MisconfigurationException: if they cannot be read, or contradict themselves.
        """
        if isinstance(gen_config_arg, GenerationConfig):
            config = copy.deepcopy(gen_config_arg)
        else:
            path = Path(gen_config_arg)
            name = path.name if path.is_file() else None
            try:
                config = GenerationConfig.from_pretrained(str(path.parent if name else gen_config_arg), name)
            except (OSError, ValueError) as error:
                raise MisconfigurationException(
                    f"generation_config={str(gen_config_arg)!r} cannot be read: {str(error).splitlines()[0]} Name a "
                    "folder with a generation_config.json, the file itself, or a model on the hub."
                ) from error
        try:
            config.validate(strict=True)
        except ValueError as error:
            raise MisconfigurationException(f"{error}\n\nFix these issues to train your model.") from error
        return config

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """As `Trainer.evaluate`; `gen_kwargs` go to the model's generate(), before what the arguments say."""
        self._gen_kwargs = self._with_defaults(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """As `Trainer.predict`; predictions are the generated tokens, padded to one length."""
        self._gen_kwargs = self._with_defaults(gen_kwargs)
        return super().predict(test_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Loss, generated tokens and labels of one batch, the two latter padded to the longest that may come."""
        if not self._args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        inputs = self._prepare_inputs(inputs)
        tokens = self._generate(inputs, gen_kwargs)
        labels = inputs.get("labels")
        loss = None if labels is None else self._loss_of_labels(model, inputs)
        if self.args.prediction_loss_only:
            return loss, None, None
        return loss, self._padded(tokens), None if labels is None else self._padded(labels)

    # Generation

    @property
    def _args(self) -> Any:
        return self.args

    @property
    def _generator(self) -> Any:
        return self.model

    def _with_defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """`given`, and what the arguments say of what it leaves open."""
        settings = dict(given)
        length = self._args.generation_max_length
        if settings.get("max_length") is None and settings.get("max_new_tokens") is None and length is not None:
            settings["max_length"] = length
        if settings.get("num_beams") is None and self._args.generation_num_beams is not None:
            settings["num_beams"] = self._args.generation_num_beams
        return settings

    def _generate(self, inputs: dict[str, Any], gen_kwargs: dict[str, Any]) -> torch.Tensor:
        settings = dict(gen_kwargs or self._gen_kwargs or {})
        for name in ("num_beams", "max_length"):
            if name in settings and settings[name] is None:
                del settings[name]
        given, labels = dict(inputs), inputs.get("labels")
        decoded = inputs.get("decoder_input_ids")
        if labels is not None and decoded is not None and labels.shape == decoded.shape:
            # made from the labels by a collator: with them there would be nothing left to generate
            for name in ("decoder_input_ids", "decoder_attention_mask"):
                given.pop(name, None)
        tokens = self._generator.generate(**given, **settings)
        config = self._generator.generation_config
        if getattr(config, "_from_model_config", False):
            config._from_model_config = False  # otherwise it would be made anew from the model's, with a warning
        # After its first generation transformers' Trainer has all defaults in the model's settings, max_length among
        # them, by which the next ones end and which are saved.
        if hasattr(config, "_get_default_generation_params"):
            config.update(**config._get_default_generation_params(), defaults_only=True)
        return tokens

    def _loss_of_labels(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
        if self.label_smoother is not None:
            return self.label_smoother(outputs, inputs["labels"]).detach().mean()
        return loss_of(outputs, inputs).detach().mean()

    def _padded(self, tokens: torch.Tensor) -> torch.Tensor:
        """`tokens` as long as the longest that the model's settings allow, so that batches can be joined."""
        config = self._generator.generation_config
        longest = 20 if config.max_length is None else config.max_length
        if tokens.shape[-1] < longest:
            return self._pad_tensors_to_max_len(tokens, longest)
        if config.max_new_tokens is not None and tokens.shape[-1] < config.max_new_tokens + 1:
            return self._pad_tensors_to_max_len(tokens, config.max_new_tokens + 1)
        return tokens

    def _pad_tensors_to_max_len(self, tensor: torch.Tensor, max_length: int) -> torch.Tensor:
        """`tensor`, batch x length, padded on the right to `max_length` with the tokenizer's or the model's padding.

        Raises:
            MisconfigurationException: if neither has a token for it.
        """
        if hasattr(self.processing_class, "pad_token_id"):
            padding = self.processing_class.pad_token_id
            padding = self.processing_class.eos_token_id if padding is None else padding
        else:
            padding = getattr(self._generator.config, "pad_token_id", None)
        if padding is None:
            raise MisconfigurationException(
                "Generated texts of different lengths have to be padded, and there is no token for it. Pad_token_id "
                "must be set in the configuration of the model, or a tokenizer with one given as processing_class."
            )
        return nn.functional.pad(tensor, (0, max_length - tensor.shape[-1]), value=padding)
