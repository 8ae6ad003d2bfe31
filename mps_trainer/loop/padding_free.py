"""Leaves the padding out of the batches of a run, once both ways of computing the first one have agreed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..callbacks.events import Events
from ..data.transfer import BatchTransfer
from ..data.unpadding import (
    has_label_after_left_padding,
    in_one_row,
    layout_of_packed_row,
    record_layouts,
    texts_in_batch,
    to_padded_batch,
)
from ..model.introspection import base_model
from ..model.padding_free import (
    HOOKED,
    PaddingPlan,
    agree,
    evaluating,
    has_foreign_hooks,
    hidden_states_of,
    tolerance_for,
)
from ..utils.nested import map_tensors
from ..utils.text_layout import TextLayout, forget_layouts, layout_of, layouts_in, record_layout

logger = logging.getLogger(__name__)


class PaddingFree:
    """Owns how a run leaves out padding: its plan, whether both ways agreed, and the tokens that it has left out.

    Left-padded batches and right-padded ones are tested on their own. The result for one kind does not depend on the
    order of the batches, so a resumed run does what the whole run does.

    Args:
        plan: see `mps_trainer.model.padding_free`.
        model: the model without wrappers for several processes.
        fills: True to fill rows up to one of few lengths.
    """

    def __init__(
        self, plan: PaddingPlan, model: nn.Module, transfer: BatchTransfer, events: Events, fills: bool
    ) -> None:
        self.plan, self._model, self._transfer, self._events = plan, model, transfer, events
        self._fills = fills
        self._agreed: dict[bool, bool] = {}  # by kind of batch: True for a left-padded one
        self._padded = self._computed = 0
        self._has_warned_of_left_padding = False

    def unpad(self, batch: Any) -> Any:
        """Returns a batch without padding, on the host; the batch itself where it has to be computed as it is."""
        if self.plan.head is not None and (layout := layout_of_packed_row(batch)) is not None:
            return self._verified_packed_row(batch, layout)
        if not self.plan.applies:
            return batch
        unpadded, layouts = self._without_padding(batch)
        if layouts:
            self._padded += sum(layout.batch * layout.length for layout in layouts)
            self._computed += sum(layout.num_tokens for layout in layouts)
        else:
            size = sum(texts.mask.numel() for texts in texts_in_batch(batch))
            self._padded, self._computed = self._padded + size, self._computed + size
        return unpadded

    def unpad_for_loss(self, batch: Any) -> Any:
        """Returns a batch of an evaluation that computes the loss alone, like `unpad`."""
        if self.plan.applies and self.plan.in_evaluation:
            return self._without_padding(batch)[0]
        forget_layouts(batch)
        return batch

    def _without_padding(self, batch: Any) -> tuple[Any, list[TextLayout]]:
        """Returns a batch without padding and the layouts of its texts; the batch itself has none if it stays."""
        if self.plan.head is None:
            unpadded, layouts = batch, record_layouts(batch, self._fills, self.plan.window)
        else:
            unpadded = in_one_row(batch, self._fills, self.plan.counts_mask)
            layouts = [layout for _, layout in layouts_in(unpadded)]
            if unpadded is None and not self._has_warned_of_left_padding and has_label_after_left_padding(batch):
                self._has_warned_of_left_padding = True
                logger.warning(
                    "Left-padded batches keep their padding, because the loss counts the first token of their texts. "
                    "Set tokenizer.padding_side='right' to train without padding."
                )
        # a text alone would not show whether texts see each other
        is_alone = all(layout.batch < 2 for layout in layouts)
        if not layouts or is_alone or not self._is_verified(batch, unpadded):
            forget_layouts(batch)
            return batch, []
        return unpadded, layouts

    def _verified_packed_row(self, row: Any, layout: TextLayout) -> Any:
        """Returns a row that a collator has packed; as a padded batch, if the model lets its texts see each other."""
        padded = to_padded_batch(row, layout)
        if not self._is_verified(padded, row):
            return padded if self.plan.head is not None else row  # the hook is to see the row of the collator
        # attention in the form of the padded batch, where that has fewer pairs of tokens than the row
        if self.plan.applies and layout.batch * layout.length**2 < layout.num_tokens**2:
            record_layout(row["position_ids"], layout)
        return row

    def _is_verified(self, batch: Any, unpadded: Any) -> bool:
        """Returns True if the first batch of this kind had the same numbers without padding."""
        is_left_padded = any(not bool(texts.mask[:, 0].all()) for texts in texts_in_batch(batch))
        if is_left_padded not in self._agreed:
            # callbacks may have added hooks since the plan was made
            if has_foreign_hooks(base_model(self._model), self.plan.encoders):
                self.plan = PaddingPlan(reason=HOOKED)
                return False
            self._agreed[is_left_padded] = self._agrees(batch, unpadded)
        return self._agreed[is_left_padded]

    @property
    def fraction_left_out(self) -> float | None:
        """Returns the fraction of the tokens of padded batches that was left out; None if none was."""
        left_out = self._padded - self._computed
        return left_out / self._padded if left_out else None

    def note_fraction(self) -> None:
        """Notes in the report what was left out."""
        if (fraction := self.fraction_left_out) is not None:
            self._events.note("padding", f"left out, {fraction:.0%} of the tokens of padded batches")

    def _agrees(self, batch: Any, unpadded: Any) -> bool:
        """Computes a batch both ways, and says so if they differ."""
        tolerance, problem = tolerance_for(self._model), "computes other numbers without padding"
        try:
            with evaluating(self._model), torch.autocast(self._transfer.device.type, enabled=False):
                if self.plan.head is not None:
                    agrees = self._decoder_agrees(batch, unpadded, tolerance)
                else:
                    agrees = self._encoders_agree(batch, tolerance) and self._outputs_agree(batch, tolerance)
        except Exception as error:  # if the batch itself is wrong, training says so next
            logger.debug("A batch without padding failed.", exc_info=True)
            agrees, problem = False, f"fails without padding ({type(error).__name__})"
        if agrees:
            return True
        name = type(base_model(self._model)).__name__
        logger.warning("%s %s, as the first batch showed, so the run keeps the padding.", name, problem)
        self._events.note("off", f"training without padding, because {name} {problem}")
        return False

    def _decoder_agrees(self, batch: Any, unpadded: Any, tolerance: float) -> bool:
        assert self.plan.head is not None
        padded = self._transfer({name: batch[name] for name in ("input_ids", "attention_mask")})
        row = self._transfer({name: value for name, value in unpadded.items() if name != "labels"})
        indices = self._transfer(batch["attention_mask"].flatten().nonzero().squeeze(1))
        expected, actual = (hidden_states_of(self._model, self.plan.head, inputs) for inputs in (padded, row))
        if not agree(actual[0, : len(indices)], expected.flatten(0, 1).index_select(0, indices), tolerance):
            return False
        # in 16 bits rounding may hide what texts see of each other, so the first text is changed
        second = int((unpadded["position_ids"][0] == 0).nonzero()[1])
        tokens = unpadded["input_ids"].clone()
        tokens[0, :second] = tokens[0, :second].flip(0).add(1).remainder(int(tokens.max()) + 1)
        changed = {**row, "input_ids": self._transfer(tokens)}
        after = hidden_states_of(self._model, self.plan.head, changed)
        parts = slice(second, len(indices))
        return agree(after[0, parts], actual[0, parts], tolerance_for(self._model, of_neighbours=True))

    def _encoders_agree(self, batch: Any, tolerance: float) -> bool:
        for texts in texts_in_batch(batch):
            if layout_of(texts.mask) is None or "input_ids" not in texts.inputs:
                continue
            row = self._transfer(dict(texts.inputs))
            padded = {name: tensor.clone() for name, tensor in row.items()}  # without layouts
            layout = layout_of(row["attention_mask"])
            assert layout is not None
            for model, _ in self.plan.encoders:
                expected, actual = model(**padded)[0], model(**row)[0]
                count = layout.num_text_tokens
                if not agree(layout.to_row(actual)[:, :count], layout.to_row(expected)[:, :count], tolerance):
                    return False
        return True

    def _outputs_agree(self, batch: Any, tolerance: float) -> bool:
        """Compares what heads and poolings make of the hidden states, as far as a batch is the model's input."""
        layout = layout_of(batch.get("attention_mask")) if isinstance(batch, Mapping) else None
        if layout is None or "input_ids" not in batch:
            return True
        row = self._transfer(batch)
        outputs = [self._model(**inputs) for inputs in (map_tensors(row, torch.Tensor.clone), row)]
        parts = [tuple(out.values()) if isinstance(out, Mapping) else out for out in outputs]
        for expected, actual in zip(*(each if isinstance(each, tuple) else (each,) for each in parts), strict=True):
            if not isinstance(expected, torch.Tensor) or not expected.is_floating_point():
                continue
            if expected.shape[:2] == (layout.batch, layout.length):
                if self.plan.loss_of_others:
                    return False
                continue
            if not agree(actual.reshape(1, -1), expected.reshape(1, -1), tolerance):
                return False
        return True
