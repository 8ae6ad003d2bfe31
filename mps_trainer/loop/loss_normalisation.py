"""Finds out whether a loss is already normalised over the items of its update by the code that computes it.

transformers gives `num_items_in_batch`, the items of the whole update, to each model whose forward() takes further
arguments, and to functions of the user. Some models divide their loss by it. Others, such as BERT's heads, ignore it,
and their loss stays the mean of one batch. Nothing says which, but the first batch shows it.

This module decides whether a loss is divided; `loss.py` computes the divisor.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.trainer_pt_utils import LabelSmoother

from ..distributed.ddp import inside
from ..distributed.sharded import is_sharded
from ..model.introspection import base_model, predicts_next_token, shifts_labels, without_adapters
from ..overrides import Overrides
from ..utils.compiled import inside_compiled, is_compiled
from .items import items_of
from .loss_divisors import BatchWeight, UpdateLoss, loss_in_outputs

# the first releases of transformers 5 do not divide
_SMOOTHER_NORMALISES = "num_items_in_batch" in inspect.signature(LabelSmoother.__call__).parameters

# The code that computes a loss
SUBCLASS, FUNCTION, SMOOTHER, MODEL = "subclass", "compute_loss_func", "label_smoother", "model"


class LossSettings(NamedTuple):
    """Holds the settings of a Trainer for losses. They are read for each batch: libraries and callbacks change them.

    Args:
        function: `compute_loss_func`.
        smoother: `label_smoother`.
        accepts_items: `model_accepts_loss_kwargs`.
        declared: `loss_is_scaled_for_ga`.
        overrides: the overridden methods of the Trainer.
    """

    function: Callable | None = None
    smoother: Any = None
    accepts_items: bool = True
    declared: bool | None = None
    overrides: Overrides = Overrides()

    @classmethod
    def of(cls, trainer: Any) -> LossSettings:
        return cls(
            trainer.compute_loss_func,
            trainer.label_smoother,
            trainer.model_accepts_loss_kwargs,
            trainer.loss_is_scaled_for_ga,
            trainer._mt_overrides,
        )

    @property
    def takes_labels(self) -> bool:
        """Returns True if the labels are for a function instead of the model."""
        return self.smoother is not None or self.function is not None

    @property
    def computed_by(self) -> str:
        """Returns which code computes the next losses."""
        if self.function is not None:
            return FUNCTION
        if self.overrides.compute_losses_or_items:
            return SUBCLASS
        return MODEL if self.smoother is None else SMOOTHER


class LossRule(NamedTuple):
    """Says how a loss treats the number of items in an update.

    Args:
        may_use_items: True if the number has to be counted, because the loss may use it.
        divides_by_items: True if the loss, given the number, is already normalised over the update.
    """

    may_use_items: bool
    divides_by_items: bool


class BatchLoss:
    """Records how the loss of a batch is computed.

    Attributes:
        num_items: the number of items for compute_loss. It may be watched.
        computed_by: a subclass, until the Trainer's own compute_loss computes the loss.
        was_given_items: False if a subclass has called compute_loss without them.
    """

    __slots__ = ("computed_by", "num_items", "was_given_items")

    def __init__(self, num_items: Any = None) -> None:
        self.num_items, self.computed_by, self.was_given_items = num_items, SUBCLASS, True


class LossNormalisation:
    """Gives the number of items to the code that computes losses, and finds out whether it divides by them.

    The Trainer calls its methods in this order:

    1. `items` once for an update, and for each batch of an evaluation;
    2. `begin_batch` before `compute_loss`, for each batch of an update;
    3. `outputs`, `loss_of` and, in several processes, `is_part_of_sum` within the Trainer's own `compute_loss`, which
       an override may or may not call;
    4. `weighted` after `compute_loss`, for each batch of an update.

    `begin_batch` and `loss_of` note how the loss of the batch is computed; `is_part_of_sum` and `weighted` read it.

    Args:
        model_divides: True if the model's forward() computes with the number; None if the first batch is to show it.
        subclass_divides: True if a subclass's compute_loss computes with it; None if the first batch is to show it.
    """

    def __init__(self, model_divides: bool | None = None, subclass_divides: bool | None = None) -> None:
        self.model_divides, self.subclass_divides = model_divides, subclass_divides
        self._batch = BatchLoss()  # the one that compute_loss was called for last
        self._counted_alone = False
        self._has_warned = False

    def rule(self, computed_by: str, settings: LossSettings) -> LossRule:
        """Returns the rule for a loss.

        A subclass that does not say it with `loss_is_scaled_for_ga` is taken to divide where its model accepts the
        number, as in transformers.
        """
        is_accepted = settings.accepts_items
        if computed_by == MODEL:
            return LossRule(is_accepted and self.model_divides is not False, bool(self.model_divides))
        if computed_by == FUNCTION:
            return LossRule(True, True)
        if computed_by == SMOOTHER:
            return LossRule(is_accepted, is_accepted and _SMOOTHER_NORMALISES)
        return LossRule(is_accepted or settings.declared is True, is_accepted)

    def may_use_items(self, settings: LossSettings) -> bool:
        """Returns True if the losses to come may use the number of items in an update."""
        return self.rule(settings.computed_by, settings).may_use_items

    def items(
        self, batches: list[Any], model: nn.Module, settings: LossSettings, update: UpdateLoss | None = None
    ) -> torch.Tensor | None:
        """Returns the number of items in `batches`; None if the loss does not use it or it is unknown.

        Args:
            update: the update of the batches, to count the items of all processes; None in an evaluation.
        """
        self._counted_alone = update is None
        items, may_be_used = None, self.may_use_items(settings)
        if may_be_used:
            own = batches if update is None else update.own_batches(batches)
            # transformers looks only through adapters, so a causal model in DataParallel counts all of its labels
            shifted = shifts_labels(without_adapters(inside(model)))
            items = torch.tensor(0) if batches and not own else items_of(own, shifted)
        if update is None:
            return items
        is_of_model = settings.computed_by == MODEL
        if is_of_model and not settings.accepts_items:
            return items
        return update.items_of_all(items, may_be_used, may_be_ignored=is_of_model)

    def begin_batch(self, model: nn.Module, num_items: Any, settings: LossSettings) -> BatchLoss:
        """Returns the record of a batch, whose `num_items` are for compute_loss.

        In the first batch, the number records whether a subclass's compute_loss uses it, which the class may not say.
        Compiled code cannot be watched: it is traced once.
        """
        says_nothing = settings.declared is None and settings.overrides.compute_loss and settings.accepts_items
        is_unknown = self.subclass_divides is None and num_items is not None
        if is_unknown and says_nothing and not is_compiled(inside(model)):
            num_items = torch.as_tensor(num_items).as_subclass(_Watched)
        self._batch = BatchLoss(num_items)
        return self._batch

    def outputs(self, model: nn.Module, inputs: Mapping[str, Any], num_items: Any, settings: LossSettings) -> Any:
        """Returns the outputs of `model`, which gets the number of items if it accepts it and uses it.

        Raises:
            TypeError: if the batch has no names.
        """
        if not hasattr(inputs, "keys"):  # Python's own error would quote the whole model
            raise TypeError(
                f"A batch is a {type(inputs).__name__}, and {type(base_model(model)).__name__} needs the names of its "
                "inputs. Let the data_collator return a dictionary, or override compute_loss."
            )
        if num_items is None or not settings.accepts_items or self.model_divides is False:
            return model(**inputs)
        if self.model_divides is None:
            return self._watched_outputs(model, inputs, num_items)
        # compiled code would be compiled again for each plain number
        if not is_compiled(inside(model)) and type(base_model(model)).__module__.startswith("transformers."):
            num_items = _as_number(num_items)
        return model(**inputs, num_items_in_batch=num_items)

    def _watched_outputs(self, model: nn.Module, inputs: Mapping[str, Any], num_items: Any) -> Any:
        """Returns the outputs of `model`, and learns whether it uses the number of items, and whether it takes it.

        A wrapper may take any argument while the model inside refuses this one. Compiled code is run uncompiled.
        """
        items = torch.as_tensor(num_items)
        if is_sharded(model):  # FSDP would move it to the device of the inputs, and so use it
            items = items.to(next((each.device for each in inputs.values() if torch.is_tensor(each)), None))
        watched = items.as_subclass(_Watched)
        try:
            outputs = inside_compiled(model)(**inputs, num_items_in_batch=watched)
        except TypeError as error:
            if "unexpected keyword argument 'num_items_in_batch'" not in str(error):
                raise
            self.model_divides = False
            return model(**inputs)
        self.model_divides = watched.was_used
        return outputs

    def loss_of(
        self,
        model: nn.Module,
        outputs: Any,
        inputs: Mapping[str, Any],
        labels: Any,
        num_items: Any,
        settings: LossSettings,
    ) -> torch.Tensor:
        """Returns the loss of a batch from the outputs of the model.

        Args:
            labels: the labels of the batch, if they were not given to the model.
        """
        batch = self._batch
        batch.was_given_items = num_items is not None
        if settings.function is not None:
            batch.computed_by = FUNCTION
            return settings.function(outputs, labels, num_items_in_batch=num_items)
        if labels is not None and settings.smoother is not None:
            batch.computed_by = SMOOTHER
            is_given = num_items is not None and self.rule(SMOOTHER, settings).divides_by_items
            given = {"num_items_in_batch": _as_number(num_items)} if is_given else {}
            return settings.smoother(outputs, labels, shift_labels=predicts_next_token(model), **given)
        batch.computed_by = MODEL
        return loss_in_outputs(outputs, inputs)

    def is_part_of_sum(self, model: nn.Module, num_items: Any, settings: LossSettings) -> bool:
        """Returns True if the last loss of `loss_of` is divided by the items of all processes.

        Gradients are averaged, so such a loss has to be multiplied by their number.
        """
        computed_by = self._batch.computed_by
        if not (self.is_normalised(num_items, settings) and self.rule(computed_by, settings).divides_by_items):
            return False
        return inside(model).training or (settings.overrides.get_num_items_in_batch and not self._counted_alone)

    def is_normalised(self, num_items: Any, settings: LossSettings) -> bool:
        """Returns True if the last loss is already normalised over `num_items`, the items of the whole update."""
        if settings.declared is not None:
            return settings.declared
        is_given = num_items is not None and self._batch.was_given_items
        return is_given and self.rule(self._batch.computed_by, settings).divides_by_items

    def weighted(
        self, loss: torch.Tensor, weight: BatchWeight, num_items: Any, settings: LossSettings, owner: str
    ) -> torch.Tensor:
        """Returns the part that the loss of a batch has in the loss of the update.

        Args:
            owner: the name of the class whose compute_loss has computed it.
        """
        if isinstance(given := self._batch.num_items, _Watched):  # memory may run out before compute_loss looks at it
            # If super().compute_loss computed this batch, we learn nothing about the subclass's own losses; assume
            # that they are divided.
            self.subclass_divides = given.was_used or self._batch.computed_by != SUBCLASS
        if not self.is_normalised(num_items, settings):
            return weight.of_mean(loss)
        if self._batch.computed_by == SUBCLASS and self.subclass_divides is False:
            self._warn_of_assumption(weight, owner)
            return weight.of_added_mean(loss)
        return loss

    def _warn_of_assumption(self, weight: BatchWeight, owner: str) -> None:
        """Warns once of accumulated losses that count as normalised over the update and do not use its items."""
        if self._has_warned or weight.accumulated == 1:
            return
        self._has_warned = True
        warnings.warn(
            f"{owner}.compute_loss is assumed to divide by num_items_in_batch, as in "
            "transformers for a model that accepts that argument. If it returns the mean of its batch, accumulated "
            "losses are too large: set loss_is_scaled_for_ga = False in the class, or True to silence this warning.",
            UserWarning,
            stacklevel=3,
        )


def _as_number(num_items: Any) -> Any:
    """Returns a number of the host as a plain one, which losses of transformers need not copy to the device."""
    return num_items.item() if torch.is_tensor(num_items) and num_items.device.type == "cpu" else num_items


class _Watched(torch.Tensor):
    """A number that records whether anything was computed with it."""

    was_used = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in ("__get__", "is_floating_point"):  # reading attributes is no use of it
            for value in [*args, *(kwargs or {}).values()]:
                if isinstance(value, _Watched):
                    value.was_used = True
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result
