"""What a Trainer minimises: the loss of a batch, its share in the update, and the number format of both."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers.trainer_pt_utils import LabelSmoother

from ..data.split import split
from ..distributed.sharded import is_sharded
from ..guards.growth import free_unused
from .base import TrainerBase
from .introspection import base_model
from .items import ItemsUse, items_of
from .loss import count_items, divisors, loss_of, predicts_next_token, shifts_labels
from .optimizer import set_mode
from .replicas import inside, nothing_of
from .shards import adding_nothing

# not in the first releases of transformers 5
_SMOOTHER_NORMALISES = "num_items_in_batch" in inspect.signature(LabelSmoother.__call__).parameters


class Objective(TrainerBase):
    """Override compute_loss for a loss of your own."""

    compute_loss_func: Callable | None
    label_smoother: LabelSmoother | None
    items_use: ItemsUse
    # True in a subclass whose compute_loss normalises over num_items_in_batch, False if it is the mean of its batch
    loss_is_scaled_for_ga: bool | None = None
    current_gradient_accumulation_steps: int = 1
    loss_divisor: float = 1.0  # of the batch whose step comes next
    _loss_is_normalised: bool | None = None  # over the update, as compute_loss below left it; None if it did not run

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Forward and backward for one batch; returns what it adds to the update's loss, detached, on the device."""
        if not inside(model).training:  # there was an evaluation
            model.train()
            set_mode(self.optimizer, training=True)
        inputs = self._prepare_inputs(inputs)
        self._loss_is_normalised = None
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0:
            free_unused(self.args.device)
        if not self._is_share_of_update(num_items_in_batch):
            if self.loss_divisor != 1:
                loss = loss / self.loss_divisor
        elif self.processes.are_several and self.args.average_tokens_across_devices:
            loss = loss * self.processes.size  # gradients are averaged, and this is one of several parts of a sum
        self.accelerator.backward(loss)
        return loss.detach()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch, the mean over its items; with `return_outputs`, a pair of it and the outputs.

        The Trainer weighs the losses of accumulated batches by their items. A loss of yours that is already normalised
        over `num_items_in_batch`, the items of the whole update, needs `loss_is_scaled_for_ga = True`; one that is the
        mean of its own batch, False. Where that is None, a loss that does not come from here counts as normalised if
        the model takes `num_items_in_batch` (`model_accepts_loss_kwargs`), as it does in transformers.
        """
        self._loss_is_normalised = self.compute_loss_func is not None and num_items_in_batch is not None
        takes_labels = self.label_smoother is not None or self.compute_loss_func is not None
        labels = inputs.pop("labels", None) if takes_labels else None
        outputs = self._outputs(model, inputs, num_items_in_batch)
        if self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
        elif labels is not None and self.label_smoother is not None:
            loss = self._smoothed_loss(model, outputs, labels, num_items_in_batch)
        else:
            loss = loss_of(outputs, inputs)
            self._loss_is_normalised = bool(self.items_use.is_used) and num_items_in_batch is not None
        return (loss, outputs) if return_outputs else loss

    def _outputs(self, model: nn.Module, inputs: dict[str, Any], num_items: torch.Tensor | int | None) -> Any:
        if num_items is None or not self.model_accepts_loss_kwargs:
            return model(**inputs)
        return self.items_use.forward(model, inputs, num_items)

    def _smoothed_loss(self, model: nn.Module, outputs: Any, labels: Any, num_items: torch.Tensor | int | None) -> Any:
        assert self.label_smoother is not None
        normalise = self.model_accepts_loss_kwargs and num_items is not None and _SMOOTHER_NORMALISES
        self._loss_is_normalised = normalise
        kwargs = {"num_items_in_batch": num_items} if normalise else {}
        return self.label_smoother(outputs, labels, shift_labels=predicts_next_token(model), **kwargs)

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager:
        """Around every forward pass: autocast, if the arguments ask for it; on an accelerator, masks made unasked."""
        contexts: list[contextlib.AbstractContextManager] = []
        if self.attention_masks.applies:
            contexts.append(self.attention_masks.in_use())
        if self.precision.dtype is not None:
            contexts.append(self.precision.autocast())
        if self._mt_overrides.has("autocast_smart_context_manager"):
            contexts.append(self.autocast_smart_context_manager())
        if not contexts:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        for context in contexts:
            stack.enter_context(context)
        return stack

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager:
        """What a subclass wants around the forward pass besides; nothing here."""
        return contextlib.nullcontext()

    def take_part(self, model: nn.Module, inputs: dict[str, Any], num_items: torch.Tensor | int | None = None) -> None:
        """A backward pass that adds nothing, where this process has nothing to learn and the others wait for it."""
        inputs = self._prepare_inputs(inputs)
        if is_sharded(model):
            # each block waits for that of the others, in both directions: what they compute is computed here
            with adding_nothing(model):
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, inputs, num_items_in_batch=num_items).sum()
                self.accelerator.backward(loss)
            return
        with self.compute_loss_context_manager():
            self._outputs(model, inputs, None)
            loss = nothing_of(model)
        self.accelerator.backward(loss)

    # The batches of an update

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """The next batches of an epoch, at most `num_batches`, and how many items all of them have."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        items = self._get_num_items_in_batch(batches, device)
        if not self.processes.are_several:
            return batches, items
        fillers = set() if self.loop is None else self.loop.fillers_from(self.loop.update_begins_at, len(batches))
        if fillers and items is not None:  # which are counted by the processes that they belong to
            own = [batch for number, batch in enumerate(batches) if number not in fillers]
            items = self._get_num_items_in_batch(own, device) if own else torch.tensor(0)
        return batches, self._of_all_processes(items)

    def _of_all_processes(self, items: torch.Tensor | int | None) -> torch.Tensor | int | None:
        """The items of an update in all processes, of those in this one; None if one of them does not know."""
        # what one process has learnt of the model's loss, another may not have: all ask, or none
        asks = self.model_accepts_loss_kwargs or self.compute_loss_func is not None or self._computes_loss_itself
        if not asks or not self.args.average_tokens_across_devices:
            return items
        total, unknown = self.processes.sum([0.0 if items is None else float(items), items is None])
        return None if unknown else torch.tensor(int(total))

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor | int | None:
        """Labels of all batches that enter the loss; None where there are none or nobody looks at the number."""
        uses = self.model_accepts_loss_kwargs and (self.items_use.is_used is not False or self.label_smoother)
        if not (uses or self.compute_loss_func is not None or self._computes_loss_itself):
            return None
        return items_of(batch_samples, shifts_labels(base_model(self.model)))

    def shares(self, batches: list[Any]) -> list[float | None]:
        """What the loss of each batch of an update is divided by; None for one without items, which has no loss.

        With several processes, whose gradients are averaged, the average is the mean over the items of all.
        """
        if not self.processes.are_several:
            return divisors(self._item_counts(batches)) if len(batches) > 1 else [1.0]
        fillers = set() if self.loop is None else self.loop.fillers_among(len(batches))
        counts = [0 if i in fillers else count for i, count in enumerate(self._item_counts(batches))]
        if not self.args.average_tokens_across_devices:
            return divisors(counts)
        unknown, total, number = self.processes.sum(
            [counts.count(None), sum(count or 0 for count in counts), len(counts) - len(fillers)]
        )
        if unknown or not total:
            counts, total = [0 if i in fillers else 1 for i in range(len(batches))], number
        return [total / (count * self.processes.size) if count else None for count in counts]

    def _item_counts(self, batches: list[Any]) -> list[int | None]:
        shifted = shifts_labels(base_model(self.model))
        return [count_items(batch, self.label_names, shifted) for batch in batches]

    def split_batch(self, batch: Any, most: int) -> list[Any]:
        """`batch` in parts of at most `most` examples, in their order; for `auto_find_batch_size`.

        Tensors with an entry for each example are cut. Override it for batches in which these do not all have the
        examples in their first dimension.

        Raises:
            UnsplittableBatchError: if it cannot be told where an example ends.
        """
        return split(batch, most)

    @property
    def _computes_loss_itself(self) -> bool:
        """True if a subclass has a loss of its own."""
        return self._mt_overrides.has("compute_loss", "training_step", "get_batch_samples")

    def _is_share_of_update(self, num_items_in_batch: torch.Tensor | int | None) -> bool:
        """Whether the loss that compute_loss just gave is normalised over the whole update already."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        if self._loss_is_normalised is not None:
            return self._loss_is_normalised
        normalised = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        if normalised and self.loss_divisor != 1:
            warnings.warn(
                f"{type(self).__name__}.compute_loss is taken to divide by num_items_in_batch, as transformers takes "
                "it with a model that accepts that argument. If it gives the mean of its batch, accumulated losses "
                "come out too large: set loss_is_scaled_for_ga = False in the class, or True to silence this.",
                UserWarning,
                stacklevel=2,
            )
        return normalised
