"""Estimates the memory of a Trainer's training step without training and without that memory."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...checkpoints.rng import rng_state, set_rng
from ...errors import MisconfigurationException
from ...utils.attributes import attributes_replaced
from ...utils.text import sentence
from .chips import CHIPS, least_seconds
from .fit_report import SIZES, FitReport, RemedyResult, limit_of
from .longest import longest_texts
from .quantized import QuantizedLinear
from .remedies import Remedy, remedies_for, together
from .step import Batch, as_on_mps, largest_batch, measure_step

if TYPE_CHECKING:
    from ...trainer import Trainer

logger = logging.getLogger(__name__)
BATCHES = 16


def estimate(
    trainer: Trainer,
    batches: int = BATCHES,
    tell: Callable[[str], None] = lambda _: None,
    longest: bool = False,
) -> FitReport:
    """Returns the memory of the Trainer's training step on mps, and the memory with each remedy.

    Runs steps of a copy whose tensors have shapes and no values, on any machine. The Trainer stays as it is. The copy
    takes the kernels, the number formats and the saved tensors of mps. It knows the values of small tensors that
    follow from the batch. Of others, a step gets 1 for a number, True for `all()` and False for another condition.

    Args:
        trainer: an `mps_trainer.Trainer`.
        batches: the step has the largest of this many batches.
        tell: is called with what is being computed, before each step.
        longest: also find the longest text that fits each Mac, which takes some twenty steps.

    Raises:
        MisconfigurationException: for another Trainer, without data, and if the step cannot run without values.
    """
    from ...trainer import Trainer

    if not isinstance(trainer, Trainer):
        raise MisconfigurationException(
            f"estimate takes an mps_trainer.Trainer, and got {type(trainer).__module__}.{type(trainer).__name__}. "
            "Import Trainer and TrainingArguments from mps_trainer, or run the script by `mps-trainer fit`."
        )
    rng = rng_state()
    # torch prints a traceback there for each remedy that a model does not support
    silent = attributes_replaced([(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)])
    try:
        with as_on_mps(), silent, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user does not run these steps
            tell("the step")
            try:
                batch = largest_batch(trainer, batches)
            except ValueError as error:  # no data
                raise MisconfigurationException(sentence(error)) from error
            limits = {size: limit_of(size) for size in SIZES}
            with _errors_explained(trainer):
                cost = measure_step(trainer, batch)
                # some columns of a batch cannot be made longer
                texts = longest_texts(trainer, batch, limits.values(), tell) if longest else {}
            offered = remedies_for(trainer, batch.examples)
            whole = together(offered)
            results = [_result(trainer, batch, each, tell) for each in [*offered, *([] if whole is None else [whole])]]
    finally:
        set_rng(rng)
    layers = [each for each in trainer.model.modules() if isinstance(each, QuantizedLinear)]
    packed = {each.weight: each.in_features * each.out_features for each in layers}
    sizes = {each: packed.get(each, each.numel()) for each in trainer.model.parameters()}
    return FitReport(
        model=type(trainer.model).__name__,
        parameters=sum(sizes.values()),
        trainable=sum(size for each, size in sizes.items() if each.requires_grad),
        batch_shape=batch.shape,
        batches=batch.looked_at,
        accumulated=trainer.args.gradient_accumulation_steps,
        bytes_by_kind=cost.bytes_by_kind,
        remedies=tuple(each for each in results if each is not None and each.bytes_peak < cost.bytes_peak),
        operations=cost.operations,
        least_seconds={name: least_seconds(chip, cost) for name, chip in CHIPS.items()},
        longest_texts={size: texts[limit] for size, limit in limits.items()} if longest else None,
    )


@contextlib.contextmanager
def _errors_explained(trainer: Trainer) -> Iterator[None]:
    """Raises MisconfigurationException for an error of a step inside."""
    try:
        yield
    except MisconfigurationException:
        raise
    except Exception as error:  # a model, a loss and an optimizer may do anything with a tensor
        reason = str(error).strip().partition("\n")[0] or "no message"
        raise MisconfigurationException(
            f"The step of {type(trainer.model).__name__} failed with {type(error).__name__} when it was computed with "
            f"the shapes of its tensors alone: {reason}. If it trains, measure its memory in a run on Linux: "
            "`mps-trainer simulate`."
        ) from error


def _result(trainer: Trainer, batch: Batch, remedy: Remedy, tell: Callable[[str], None]) -> RemedyResult | None:
    """Returns the memory with a remedy; None if the model does not support it."""
    tell(remedy.text)
    if remedy.needs_one_example:
        batch = replace(batch, inputs=trainer.split_batch(batch.inputs, 1)[0])
    try:
        cost = measure_step(trainer, batch, remedy.apply, accumulates=remedy.needs_one_example)
    except Exception as error:  # PEFT raises many, and so do models that cannot checkpoint
        logger.info("Not computed: %s (%s)", remedy.text, error)
        return None
    return RemedyResult(remedy.text, cost.bytes_peak)
