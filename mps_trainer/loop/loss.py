"""Computes the loss of a batch, its divisor, and the number of items in an update.

An item is a label that enters the loss. transformers gives `num_items_in_batch`, the items of the whole update, to
each model whose forward() takes further arguments. Some models divide their loss by it. Others, such as BERT's heads,
ignore it, and their loss stays the mean of one batch.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, SupportsFloat

import torch
from torch import nn
from transformers.trainer_pt_utils import LabelSmoother

from ..compat import Compat
from ..data.order import distributed_sampler
from ..data.padding import IGNORED_LABEL
from ..distributed import Processes
from ..distributed.ddp import inside
from ..distributed.sharded import class_of, is_sharded
from ..model.introspection import base_model, without_adapters
from ..utils.compiled import inside_compiled
from ..utils.nested import find_batch_size

# The losses of these causal language models of transformers compare each position with the label at that position.
_SAME_POSITION = ("XLMWithLMHeadModel", "XLNetLMHeadModel")

# the first releases of transformers 5 do not divide
_SMOOTHER_NORMALISES = "num_items_in_batch" in inspect.signature(LabelSmoother.__call__).parameters


def loss_in_outputs(outputs: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Returns the loss in the outputs of a model: under "loss", first in a tuple, or the output itself.

    Raises:
        ValueError: if there is none.
    """
    if isinstance(outputs, Mapping):
        if outputs.get("loss") is not None:
            return outputs["loss"]
        others = ", ".join(name for name in outputs if name != "loss")
        raise ValueError(
            f"The model returned {others + ' but ' if others else ''}no loss. Its inputs were: {', '.join(inputs)}. "
            "Check that they include the labels under the name that forward() takes, or override compute_loss."
        )
    loss = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    if not isinstance(loss, torch.Tensor) or loss.dim() > 0:
        raise ValueError(
            "The model's first output is not a loss, which is a tensor with one value. Return the loss first or under "
            f"'loss' when labels are given (it was given {', '.join(inputs)}), or override compute_loss."
        )
    return loss


def shifts_labels(model: nn.Module) -> bool:
    """Returns True if the model's loss predicts the next token, so the first label of each row is not a target."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    loss_type = getattr(model, "loss_type", None)
    if loss_type is None:
        return False
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    return LOSS_MAPPING.get(loss_type) is ForCausalLMLoss


def predicts_next_token(model: nn.Module) -> bool:
    """Returns True for a causal language model, where the logits at a position predict the next label."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return class_of(base_model(model)).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def count_items(batch: Any, label_names: list[str], shifted: bool) -> int | None:
    """Returns the labels in a batch that enter its loss; its examples if the labels are on a device."""
    labels = _labels_in_loss(batch, shifted, ["labels", *label_names])
    if labels is None or labels.device.type != "cpu":
        return find_batch_size(batch) if isinstance(batch, Mapping) else None
    return labels.numel() if labels.is_floating_point() else int(labels.ne(IGNORED_LABEL).sum())


def items_of(batches: list[Any], shifted: bool) -> torch.Tensor | None:
    """Returns the number of labels of all batches that count, on their own device; None if a batch has no "labels".

    Args:
        shifted: True if the loss predicts the next token, so that the first label of each row is not a target.
    """
    counts = []
    for batch in batches:
        if (labels := _labels_in_loss(batch, shifted)) is None:
            return None
        counts.append(labels.ne(IGNORED_LABEL).sum())
    return sum(counts[1:], counts[0]) if counts else None


def _labels_in_loss(batch: Any, shifted: bool, names: Sequence[str] = ("labels",)) -> torch.Tensor | None:
    """Returns the labels that enter the loss of a batch: those that are shifted already, if it has such labels."""
    if not isinstance(batch, Mapping):
        return None
    if isinstance(batch.get("shift_labels"), torch.Tensor):
        return batch["shift_labels"]
    labels = next((batch[name] for name in names if name in batch), None)
    if not isinstance(labels, torch.Tensor):
        return None
    if labels.is_nested:
        return None if shifted else labels.values()
    return labels[..., 1:] if shifted and labels.dim() > 1 else labels


def _as_number(num_items: Any) -> Any:
    """Returns a number of the host as a plain one, which losses of transformers need not copy to the device."""
    return num_items.item() if torch.is_tensor(num_items) and num_items.device.type == "cpu" else num_items


class LossSurface(Protocol):
    """Names what `UpdateLoss` reads of a Trainer."""

    args: Any
    model: Any
    model_wrapped: Any
    label_names: list[str]
    compute_loss_func: Any
    label_smoother: Any
    loss_is_scaled_for_ga: bool | None
    model_accepts_loss_kwargs: bool
    current_gradient_accumulation_steps: int
    _mt_compat: Compat
    _mt_processes: Processes


class LossRule(NamedTuple):
    """Says how a loss treats the number of items in an update.

    Args:
        may_use_items: True if the number has to be counted, because the loss may use it.
        divides_by_items: True if the loss, given the number, is already normalised over the update.
    """

    may_use_items: bool
    divides_by_items: bool


class UpdateLoss:
    """Makes the losses of the batches of an update add up to the mean over all their items.

    An update calls `loading_update`, in it `items`, and then `divisors`. Each of its batches calls `begin_batch`, in
    compute_loss `forward` and `loss_of`, and at its end `scaled`.

    Attributes:
        divisor: the divisor for the loss of the batch whose step comes next.
        accumulated: the batches of the update as the arguments say, some of which may be split into several.
        model_uses_items: True if the model's forward() computes with the number of items; None until the first batch.
        counts_together: True while the batches of an update are loaded, the same number in all processes. In an
            evaluation another process may have fewer.
    """

    def __init__(self, trainer: LossSurface) -> None:
        self.trainer = trainer
        self.divisor: SupportsFloat = 1.0
        self.accumulated = 1
        self.model_uses_items: bool | None = None
        self.counts_together = self._counted_alone = False
        self._computed_by = "subclass"  # the last loss: a name in `rule`
        self._was_given_items = True  # False where a subclass has called compute_loss without them
        self._watches = True  # until a batch has shown whether a subclass uses the number of items
        self._watched: _Watched | None = None
        self._warned_of_assumption = False
        self.start_run(None)

    def start_run(self, loader: Any) -> None:
        """Begins a run with the batches of `loader`."""
        self._loader, self._start = loader, 0
        self._all_ignore_items = False

    @contextlib.contextmanager
    def loading_update(self, start: int) -> Iterator[None]:
        """Begins the update after the first `start` batches of the epoch, which are loaded and counted inside."""
        self._start, self.counts_together = start, True
        try:
            yield
        finally:
            self.counts_together = False

    def rule(self, computed_by: str) -> LossRule:
        """Returns the rule for a loss that a kind of code computes.

        A subclass that does not say it with `loss_is_scaled_for_ga` is taken to divide where its model accepts the
        number, as in transformers.
        """
        is_accepted, model_uses = self.trainer.model_accepts_loss_kwargs, self.model_uses_items
        return {
            "subclass": LossRule(is_accepted or self.trainer.loss_is_scaled_for_ga is True, is_accepted),
            "compute_loss_func": LossRule(True, True),
            "label_smoother": LossRule(is_accepted, is_accepted and _SMOOTHER_NORMALISES),
            "model": LossRule(is_accepted and model_uses is not False, bool(model_uses)),
        }[computed_by]

    @property
    def may_use_items(self) -> bool:
        """Returns True if the loss may use the number of items in an update, so that they have to be counted."""
        return self.rule(self._expected()).may_use_items

    def _expected(self) -> str:
        """Returns the kind of code that computes the losses to come: a name in `rule`."""
        if self.trainer.compute_loss_func is not None:
            return "compute_loss_func"
        if self.trainer._mt_compat.computes_updates:
            return "subclass"
        return "model" if self.trainer.label_smoother is None else "label_smoother"

    # The items of an update

    def items(self, batches: list[Any]) -> torch.Tensor | None:
        """Returns the number of items in `batches`; None if the loss does not use it or it is unknown.

        In an update returns those of all processes. Batches that pad the share of this one are counted by another.
        """
        trainer, processes = self.trainer, self.trainer._mt_processes
        self._counted_alone = not self.counts_together
        is_shared = processes.is_distributed and self.counts_together
        padding = self.padding(len(batches)) if is_shared else set()
        own = [batch for number, batch in enumerate(batches) if number not in padding]
        items = None
        if self.may_use_items:
            # transformers looks only through adapters, so a causal model in DataParallel counts all of its labels
            shifted = shifts_labels(without_adapters(inside(trainer.model)))
            items = torch.tensor(0) if padding and not own else items_of(own, shifted)
        if not is_shared:
            return items
        # one process may have learnt about the model's loss what another has not: all ask, or none
        ignored = self._all_ignore_items or not trainer.model_accepts_loss_kwargs
        ignored = ignored and self._expected() == "model"
        if ignored or not trainer.args.average_tokens_across_devices:
            return items
        given = [0.0 if items is None else float(items), items is None, self.may_use_items]
        total, unknown, used = processes.sum(given)
        self._all_ignore_items = not used
        return None if unknown else torch.tensor(int(total))

    def items_of_each(self, batches: list[Any]) -> list[int | None]:
        """Returns the number of items in each of `batches`, None where it is unknown."""
        model = base_model(self.trainer.model)
        if class_of(model).__name__.endswith("ForCTC"):  # its loss counts examples, not labels
            return [find_batch_size(batch) for batch in batches]
        # transformers gives a class whose name has no loss of its own, such as GPT2LMHeadModel, the causal one, but
        # counts all labels of it; `items` does so, too
        is_default = getattr(model, "loss_type", "") is None and predicts_next_token(model)
        shifted = shifts_labels(model) or (is_default and class_of(model).__name__ not in _SAME_POSITION)
        return [count_items(batch, self.trainer.label_names, shifted) for batch in batches]

    def divisors(self, batches: list[Any]) -> Sequence[SupportsFloat | None]:
        """Returns the divisor for the loss of each batch of an update; None for one without items and loss.

        The gradients of several processes are averaged. With these divisors the average is the gradient of the mean
        over the items of all processes, or of this one without `average_tokens_across_devices`.
        """
        processes = self.trainer._mt_processes
        if not processes.is_distributed:
            return divisors_of(self.items_of_each(batches)) if len(batches) > 1 else [1.0]
        padding = self.padding(len(batches))
        counts = [0 if i in padding else count for i, count in enumerate(self.items_of_each(batches))]
        if not self.trainer.args.average_tokens_across_devices:
            return divisors_of(counts)
        items, with_loss = sum(count or 0 for count in counts), len(counts) - len(padding)
        totals = processes.sum_later([counts.count(None), items, with_loss])
        if all(
            count for i, count in enumerate(counts) if i not in padding
        ):  # each has a loss, whatever the others say
            return [SharedDivisor(count, totals, processes.size) if count else None for count in counts]
        unknown, total, number = totals()
        if unknown or not total:
            counts, total = [0 if i in padding else 1 for i in range(len(counts))], number
        return [total / (count * processes.size) if count else None for count in counts]

    def padding(self, count: int) -> set[int]:
        """Returns the positions of padding batches, which have no loss here, among the first `count` of the update."""
        share = None if self._loader is None else distributed_sampler(self._loader)
        numbers = () if share is None else share.padding_batches
        return {number - self._start for number in numbers if self._start <= number < self._start + count}

    # The loss of a batch

    def begin_batch(self, num_items: Any) -> Any:
        """Begins a batch, and returns `num_items` for compute_loss.

        The first batch watches if a subclass's compute_loss uses the number, because the class does not say so.
        Compiled code cannot be watched: it is traced once.
        """
        self._computed_by, self._was_given_items, trainer = "subclass", True, self.trainer
        says_nothing = trainer.loss_is_scaled_for_ga is None and trainer._mt_compat.computes_loss
        is_compiled = hasattr(trainer.model_wrapped, "_orig_mod")
        may_watch = self._watches and trainer.model_accepts_loss_kwargs and not is_compiled
        if num_items is None or not (says_nothing and may_watch):
            return num_items
        self._watched = _Watched.copy(num_items)
        return self._watched

    def stop_watching(self) -> None:
        """Assumes that losses use the number of items. Needed where tensors are fake and cannot be watched."""
        self.model_uses_items, self._watches = True, False

    def forward(self, model: nn.Module, inputs: Mapping[str, Any], num_items: Any) -> Any:
        """Returns the outputs of `model`, which gets the number of items if it accepts it and uses it.

        The uncompiled model shows on the first batch whether it uses the number, and whether it takes the number at
        all: a wrapper may take any argument while the model inside refuses this one.

        Raises:
            TypeError: for a batch without names.
        """
        if not hasattr(inputs, "keys"):  # Python's own error would quote the whole model
            raise TypeError(
                f"A batch is a {type(inputs).__name__}, and {type(base_model(model)).__name__} needs the names of its "
                "inputs. Let the data_collator return a dictionary, or override compute_loss."
            )
        if num_items is None or not self.trainer.model_accepts_loss_kwargs or self.model_uses_items is False:
            return model(**inputs)
        if self.model_uses_items is None:
            items = torch.as_tensor(num_items)
            if is_sharded(model):  # FSDP would move it to the device of the inputs, and so use it
                items = items.to(next((each.device for each in inputs.values() if torch.is_tensor(each)), None))
            watched = _Watched.copy(items)
            try:
                outputs = inside_compiled(model)(**inputs, num_items_in_batch=watched)
            except TypeError as error:
                if "unexpected keyword argument 'num_items_in_batch'" not in str(error):
                    raise
                self.model_uses_items = False
                return model(**inputs)
            self.model_uses_items = watched.was_used
            return outputs
        is_compiled = hasattr(inside(model), "_orig_mod")  # it would compile again for each plain number
        if not is_compiled and type(base_model(model)).__module__.startswith("transformers."):
            num_items = _as_number(num_items)
        return model(**inputs, num_items_in_batch=num_items)

    def loss_of(self, model: nn.Module, outputs: Any, inputs: Mapping[str, Any], labels: Any, num_items: Any) -> Any:
        """Returns the loss of a batch from the outputs of the model.

        Args:
            labels: of the batch, if they were not given to the model.
        """
        trainer, self._was_given_items = self.trainer, num_items is not None
        if trainer.compute_loss_func is not None:
            self._computed_by = "compute_loss_func"
            loss = trainer.compute_loss_func(outputs, labels, num_items_in_batch=num_items)
        elif labels is not None and trainer.label_smoother is not None:
            self._computed_by = "label_smoother"
            is_given = num_items is not None and self.rule("label_smoother").divides_by_items
            given = {"num_items_in_batch": _as_number(num_items)} if is_given else {}
            loss = trainer.label_smoother(outputs, labels, shift_labels=predicts_next_token(model), **given)
        else:
            self._computed_by, loss = "model", loss_in_outputs(outputs, inputs)
        divides = self.is_normalised(num_items) and self.rule(self._computed_by).divides_by_items
        is_shared = trainer._mt_processes.is_distributed and trainer.args.average_tokens_across_devices
        counts_itself = trainer._mt_compat.counts_items
        are_of_all = inside(model).training or (counts_itself and not self._counted_alone)
        if divides and is_shared and are_of_all:
            # gradients are averaged, and this is one part of a sum; the loss of a subclass does it as for transformers
            loss = loss * trainer._mt_processes.size
        return loss

    def is_normalised(self, num_items: Any) -> bool:
        """Returns True if the last loss is already normalised over `num_items`, the items of the whole update."""
        if self.trainer.loss_is_scaled_for_ga is not None:
            return self.trainer.loss_is_scaled_for_ga
        is_given = num_items is not None and self._was_given_items
        return is_given and self.rule(self._computed_by).divides_by_items

    def scaled(self, loss: torch.Tensor, num_items: Any) -> torch.Tensor:
        """Returns the part that the loss of a batch has in the loss of the update."""
        if self._watched is not None:
            self._watches = False  # only now: memory may run out before compute_loss has looked at the number
        if not self.is_normalised(num_items):
            divisor = float(self.divisor)
            return loss if divisor == 1 else loss / divisor
        if self._computed_by == "subclass" and self._watched is not None and not self._watched.was_used:
            self._warn_of_assumption()
            is_split = self.trainer.current_gradient_accumulation_steps > self.accumulated
            if is_split or self.accumulated == 1:  # otherwise the means are added, as in transformers
                factor = self.accumulated / float(self.divisor)
                return loss if factor == 1 else loss * factor
        return loss

    def _warn_of_assumption(self) -> None:
        """Warns once of accumulated losses that count as normalised over the update and do not use its items."""
        if self._warned_of_assumption or self.accumulated == 1:
            return
        self._warned_of_assumption = True
        warnings.warn(
            f"{type(self.trainer).__name__}.compute_loss is assumed to divide by num_items_in_batch, as in "
            "transformers for a model that accepts that argument. If it returns the mean of its batch, accumulated "
            "losses are too large: set loss_is_scaled_for_ga = False in the class, or True to silence this warning.",
            UserWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class SharedDivisor:
    """The divisor for the loss of a batch with `items`; `float()` waits for the other processes.

    The answer arrives during the forward pass. To wait for it before that took a tenth of the step of a small model
    in two processes on one machine.

    Args:
        totals: returns the sums over all processes: batches whose items are unknown, items, and batches with a loss.
        processes: how many there are.
    """

    items: int
    totals: Callable[[], Sequence[float]]
    processes: int

    def __float__(self) -> float:
        unknown, items, batches = self.totals()
        return (batches if unknown else items / self.items) / self.processes


def divisors_of(items: list[int | None]) -> list[float | None]:
    """Returns the divisor for the loss of each batch of an update; their sum is then the mean over all their items.

    A model's loss is the mean over the items of one batch, so a batch with half of all items counts half, whatever
    the sizes of the others. None is for a batch that has no item and so no loss, where others have. Where items
    cannot be counted, all batches count the same.
    """
    if any(count is None for count in items) or not (total := sum(count or 0 for count in items)):
        return [float(len(items))] * len(items)
    return [total / count if count else None for count in items]


class _Watched(torch.Tensor):
    """A number that records if anything was computed with it."""

    was_used = False

    @classmethod
    def copy(cls, items: torch.Tensor | int) -> _Watched:
        """Returns a copy: `mps-trainer check` takes what a model is given for something on the device."""
        return torch.as_tensor(items).clone().as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in ("__get__", "is_floating_point"):  # asking what it is is no use of it
            for value in [*args, *(kwargs or {}).values()]:
                if isinstance(value, _Watched):
                    value.was_used = True
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result
