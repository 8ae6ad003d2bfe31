"""Runs a step of a Trainer without its memory, and measures how much it would need."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...data.split import UnsplittableBatchError, examples_in
from ...data.unpadding import in_one_row, record_layouts
from ...errors import MisconfigurationException
from ...loop.run import TrainingRun
from ...model.introspection import base_model
from ...model.mlx_layers import MLXEmbedding, MLXLinear
from ...model.padding_free import PaddingPlan
from ...model.preparation import model_patched, prepare_model
from ...optim import adamw
from ...utils import blocks
from ...utils.attributes import attributes_replaced
from ...utils.nested import map_tensors, tensors_in
from ...utils.packed_texts import hand_on_texts, texts_of
from ...utils.text_layout import forget_layouts, layout_of, record_layout
from ..check.autocast import autocast_of_mps, overridden
from ..check.stand_in import stand_in_for
from .fake_tensors import fake_copy, fake_mode, modules_convert_fakes
from .known_values import HostReads, fake_with_values
from .memory_tracker import ACTIVATIONS, GRADIENTS, OPTIMIZER, WEIGHTS, MemoryTracker
from .operators_of_mps import operators_of_mps

if TYPE_CHECKING:
    from ...trainer import Trainer

_MPS = torch.device("mps")
Change = Callable[["Trainer"], None]


@dataclass(frozen=True)
class Batch:
    """The batch that a step is measured with, on the host.

    Attributes:
        inputs: what the data loader gave.
        num_items: the labels that the loss is the mean over, as the loop hands them on.
        examples: how many it has; None if that cannot be told.
        shape: of its largest tensor.
        looked_at: the number of batches of which it is the largest.
    """

    inputs: Any
    num_items: Any
    examples: int | None
    shape: tuple[int, ...]
    looked_at: int


def largest_batch(trainer: Trainer, most: int) -> Batch:
    """Returns the largest of the first `most` training batches. Call it inside `as_on_mps()`.

    Raises:
        MisconfigurationException: if the Trainer has no training data.
    """
    updates = TrainingRun(_stand_in(trainer)).updates_of_epoch()
    each = ((batch, update.num_items, _largest_shape(batch)) for update in updates for batch in update.batches)
    batches = list(itertools.islice(each, most))
    if not batches:
        raise MisconfigurationException("There is no step to compute: the training dataset gave no batch.")
    inputs, num_items, shape = max(batches, key=lambda each: math.prod(each[2]))
    try:
        examples = examples_in(inputs)
    except UnsplittableBatchError:
        examples = None
    return Batch(inputs, num_items, examples, shape, len(batches))


@dataclass(frozen=True)
class StepCost:
    """Holds the cost of a step: bytes at the peak by purpose, operations on matrices, and bytes that it has to move.

    The bytes moved are the least that a step can do with. Each batch reads the weights of its matrix products once;
    the backward pass reads them again only where gradients pass through them. The optimizer reads and writes its
    state, the gradients and what is trained.
    """

    bytes_by_kind: dict[str, int]
    operations: float
    bytes_moved: int

    @property
    def bytes_peak(self) -> int:
        """Returns the peak memory of the step in bytes."""
        return sum(self.bytes_by_kind.values())


def _unpadded(inputs: Any, padding: PaddingPlan) -> Any:
    """Returns a batch without padding, if the run leaves it out: it is not tried, because nothing is computed."""
    if not padding.applies:
        return inputs
    if padding.head is not None:
        return in_one_row(inputs, fills=True) or inputs
    record_layouts(inputs, fills=True)
    return inputs


def _fake_with_layout(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a fake tensor, with what is recorded with `tensor` about its texts."""
    made = fake_with_values(tensor)
    if (layout := layout_of(tensor)) is not None:
        record_layout(made, layout.with_tensors([fake_with_values(each) for each in layout.tensors]))
    if (texts := texts_of(tensor)) is not None:
        hand_on_texts(texts, made)
    return made


def measure_step(trainer: Trainer, batch: Batch, change: Change | None = None, accumulates: bool = False) -> StepCost:
    """Returns the peak memory of a training step, and the least that it computes and moves.

    The step is one after the first: the optimizer has its state. With accumulation, the gradients of earlier batches
    exist. Nothing of the Trainer is changed, and nothing is computed: only shapes are. Call it inside `as_on_mps()`.

    Args:
        change: changes a copy of the Trainer, whose step is then measured. Default: no change.
        accumulates: whether the gradients of earlier batches exist in any case.
    """
    stand_in = _stand_in(trainer)
    if change is not None:
        with fake_mode(), MemoryTracker():  # the tracker answers for values that fake tensors lack
            change(stand_in)
    head = getattr(base_model(stand_in.model), "get_output_embeddings", lambda: None)()
    prepare, tracker = stand_in._prepare_inputs, MemoryTracker(getattr(head, "out_features", None))

    def prepare_counted(inputs: Any) -> Any:
        inputs = map_tensors(prepare(inputs), _fake_with_layout)
        tracker.belongs(tensors_in(inputs), ACTIVATIONS)
        return inputs

    stand_in._prepare_inputs = prepare_counted  # type: ignore[method-assign]
    with contextlib.ExitStack() as stack:
        prepare_model(stand_in)
        padding = stack.enter_context(model_patched(stand_in, _MPS))
        changes = [(blocks, "slices", tracker.first_and_last), (adamw, "JOINED_ON_CPU", math.inf)]  # joined as on mps
        stack.enter_context(attributes_replaced(changes))
        run = TrainingRun(stand_in)
        divisors = run.loss.divisors([batch.inputs])
        inputs = _unpadded(batch.inputs, padding)
        stack.callback(forget_layouts, inputs)
        stack.enter_context(fake_mode())
        for value in vars(stand_in).values():
            if isinstance(value, nn.Module):  # the model, or another one such as a reference model
                tracker.belongs([*value.parameters(), *value.buffers()], WEIGHTS)
        stack.enter_context(HostReads())
        stack.enter_context(tracker)
        trained = [each for each in stand_in.model.parameters() if each.requires_grad]
        _make_gradients(trained, tracker)
        tracker.kind = OPTIMIZER
        stand_in.optimizer.step()  # makes its state
        state = tracker.now[OPTIMIZER]
        run.gradients.clear(stand_in.optimizer)
        count = trainer.args.gradient_accumulation_steps
        if accumulates or count > 1:
            _make_gradients(trained, tracker)
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(lambda each: tracker.belongs([each.grad], GRADIENTS))
        tracker.forget_peak()
        tracker.operations = 0.0
        tracker.kind = ACTIVATIONS
        run.accumulate_batches([inputs], batch.num_items, divisors)
        tracker.kind = OPTIMIZER
        run.step_optimizer()
        moved = count * _read_by_products(stand_in.model) + 2 * (state + 2 * sum(each.nbytes for each in trained))
    return StepCost(tracker.peak, count * tracker.operations, moved)


def _read_by_products(model: nn.Module) -> int:
    """Returns the bytes of the weights that matrix products read, each once, without embedding tables."""
    embeddings = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    tables = {id(each.packed_weight if isinstance(each, MLXEmbedding) else each.weight) for each in embeddings}
    linear = [each for each in model.modules() if isinstance(each, nn.Linear)]
    heads = {id(each.packed_weight if isinstance(each, MLXLinear) else each.weight) for each in linear}
    weights = {id(each): each for each in model.parameters() if each.dim() > 1}
    return sum(each.nbytes for key, each in weights.items() if key not in tables or key in heads)


def _stand_in(trainer: Trainer) -> Trainer:
    """Returns a copy of the Trainer on fake tensors."""
    stand_in = stand_in_for(trainer, copied=fake_copy)
    stand_in.is_in_train = True
    return stand_in


@contextlib.contextmanager
def as_on_mps() -> Iterator[None]:
    """Makes attention, autocast, linear layers and dropout on the CPU behave as on mps."""
    operators = overridden(operators_of_mps(), "AutogradCPU")
    with sdpa_kernel(SDPBackend.MATH), autocast_of_mps(), operators, modules_convert_fakes():
        yield


def _make_gradients(parameters: list[nn.Parameter], tracker: MemoryTracker) -> None:
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
        tracker.belongs([parameter.grad], GRADIENTS)


def _largest_shape(batch: Any) -> tuple[int, ...]:
    shapes = [tuple(each.shape) for each in tensors_in(batch)]
    return max(shapes, key=math.prod, default=())
