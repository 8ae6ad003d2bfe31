"""What a run has counted: floating-point operations and input tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from transformers.trainer_utils import speed_metrics

from .base import TrainerBase

logger = logging.getLogger(__name__)


class Counts(TrainerBase):
    """Counts from the shapes of the batches, in host memory: nothing waits for the device."""

    current_flos: float = 0.0  # since they were last added to the state's
    _tokens_before: int = 0
    _flos_per_token: int | None = None

    def count_batch(self, inputs: Any) -> None:
        """Counts a batch that was trained on."""
        self.current_flos += float(self.floating_point_ops(inputs))
        self._track_num_input_tokens(inputs)

    # Operations

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Estimate for forward and backward of a batch: 6 x parameters x tokens (Kaplan et al. 2020, section 2.1).

        Embeddings are left out of the parameters, as in the source: looking up a row is not an operation. 0 for a
        model that does not tell its number of parameters or what its main input is.
        """
        main_input = inputs.get(self._main_input_name) if isinstance(inputs, Mapping) else None
        if not isinstance(main_input, torch.Tensor):
            return 0
        if self._flos_per_token is None:
            count = getattr(self.model, "num_parameters", None)
            self._flos_per_token = 0 if count is None else 6 * count(exclude_embeddings=True)
        return self._flos_per_token * main_input.numel()

    def store_flos(self) -> None:
        """Adds the operations counted since the last call to `state.total_flos`."""
        self.state.total_flos += self.processes.sum([self.current_flos])[0]
        self.current_flos = 0.0

    # Tokens

    def _mt_counts(self) -> tuple[float, int]:
        """Returns the operations and tokens that a batch adds to."""
        return self.current_flos, self.state.num_input_tokens_seen

    def _mt_set_counts(self, counts: tuple[float, int]) -> None:
        self.current_flos, self.state.num_input_tokens_seen = counts

    def begin_tokens(self) -> None:
        """Tokens per second are those of the run that begins now, not of the one that it continues."""
        self._tokens_before = self.state.num_input_tokens_seen

    def token_logs(self, start_time: float | None) -> dict[str, float]:
        """What include_num_input_tokens_seen adds to a log."""
        seen = self.state.num_input_tokens_seen
        logs: dict[str, float] = {"num_input_tokens_seen": seen}
        if start_time is not None:
            logs.update(speed_metrics("train", start_time, num_tokens=seen - self._tokens_before))
        return logs

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Adds the tokens of a batch to `state.num_input_tokens_seen`, if the arguments ask for it."""
        if self.args.include_num_input_tokens_seen == "no":
            return
        tokens = inputs.get(self._main_input_name) if isinstance(inputs, Mapping) else None
        if not isinstance(tokens, torch.Tensor):
            logger.warning(
                "include_num_input_tokens_seen: the batch has no %r, so its tokens are not counted. Give the model's "
                "class the attribute main_input_name.",
                self._main_input_name,
            )
            return
        number = tokens.numel()
        if self.args.include_num_input_tokens_seen == "non_padding":
            padding = getattr(self.processing_class, "pad_token_id", None)
            if "attention_mask" in inputs:
                number = int(inputs["attention_mask"].sum())
            elif padding is not None:
                number = int((tokens != padding).sum())
            else:
                logger.warning("include_num_input_tokens_seen: nothing tells padding from tokens, so all are counted.")
        self.state.num_input_tokens_seen += int(self.processes.sum([number])[0])
