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
    given_row,
    has_label_after_padding,
    in_one_row,
    in_padded_rows,
    record_layouts,
    texts_in_batch,
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

    Batches with padding before a text and batches with padding after each text are tried on their own. What was found
    for one kind does not depend on the order of the batches, so a resumed run does what the whole run does.

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
        self._agreed: dict[bool, bool] = {}  # by kind of batch: True for one with padding before a text
        self._padded = self._computed = 0
        self._has_said_side = False

    def unpad(self, batch: Any) -> Any:
        """Returns a batch without padding, on the host; the batch itself where it has to be computed as it is."""
        if self.plan.head is not None and (layout := given_row(batch)) is not None:
            return self._checked(batch, layout)
        if not self.plan.applies:
            return batch
        made, layouts = self._without_padding(batch)
        if layouts:
            self._padded += sum(layout.batch * layout.length for layout in layouts)
            self._computed += sum(layout.num_tokens for layout in layouts)
        else:
            size = sum(texts.mask.numel() for texts in texts_in_batch(batch))
            self._padded, self._computed = self._padded + size, self._computed + size
        return made

    def unpad_for_loss(self, batch: Any) -> Any:
        """Returns a batch of an evaluation that computes the loss alone, like `unpad`."""
        return self._without_padding(batch)[0] if self.plan.applies and self.plan.in_evaluation else batch

    def _without_padding(self, batch: Any) -> tuple[Any, list[TextLayout]]:
        """Returns a batch without padding and the layouts of its texts; the batch itself has none if it stays."""
        if self.plan.head is None:
            made, layouts = batch, record_layouts(batch, self._fills, self.plan.window)
        else:
            made = in_one_row(batch, self._fills, self.plan.counts_mask)
            layouts = [layout for _, layout in layouts_in(made)]
            if made is None and not self._has_said_side and has_label_after_padding(batch):
                self._has_said_side = True
                logger.warning(
                    "Left-padded batches keep their padding, because the loss counts the first token of their texts. "
                    "Set tokenizer.padding_side='right' to train without padding."
                )
        # a text alone would not show whether texts see each other
        is_alone = all(layout.batch < 2 for layout in layouts)
        if not layouts or is_alone or not self._may_leave_out(batch, made):
            forget_layouts(batch)
            return batch, []
        return made, layouts

    def _checked(self, row: Any, layout: TextLayout) -> Any:
        """Returns a row that a collator has packed; as a padded batch, if the model lets its texts see each other."""
        padded = in_padded_rows(row, layout)
        if not self._may_leave_out(padded, row):
            return padded if self.plan.head is not None else row  # the hook is to see the row of the collator
        # attention in the form of the padded batch, where that has fewer pairs of tokens than the row
        if self.plan.applies and layout.batch * layout.length**2 < layout.num_tokens**2:
            record_layout(row["position_ids"], layout)
        return row

    def _may_leave_out(self, batch: Any, made: Any) -> bool:
        """Returns True if the first batch of this kind had the same numbers without padding."""
        has_padding_before = any(not bool(texts.mask[:, 0].all()) for texts in texts_in_batch(batch))
        if has_padding_before not in self._agreed:
            # callbacks may have added hooks since the plan was made
            if has_foreign_hooks(base_model(self._model), self.plan.encoders):
                self.plan = PaddingPlan(reason=HOOKED)
                return False
            self._agreed[has_padding_before] = self._agrees(batch, made)
        return self._agreed[has_padding_before]

    @property
    def share_left_out(self) -> float | None:
        """Returns the share of the tokens of padded batches that was left out; None if none was."""
        left_out = self._padded - self._computed
        return left_out / self._padded if left_out else None

    def note_share(self) -> None:
        """Notes in the report what was left out."""
        if (share := self.share_left_out) is not None:
            self._events.note("padding", f"left out, {share:.0%} of the tokens of padded batches")

    def _agrees(self, batch: Any, made: Any) -> bool:
        """Computes a batch both ways, and says so if they differ."""
        tolerance, found = tolerance_for(self._model), "computes other numbers without padding"
        try:
            with evaluating(self._model), torch.autocast(self._transfer.device.type, enabled=False):
                if self.plan.head is not None:
                    agrees = self._decoder_agrees(batch, made, tolerance)
                else:
                    agrees = self._encoders_agree(batch, tolerance) and self._outputs_agree(batch, tolerance)
        except Exception as error:  # if the batch itself is wrong, training says so next
            logger.debug("A batch without padding failed.", exc_info=True)
            agrees, found = False, f"fails without padding ({type(error).__name__})"
        if agrees:
            return True
        name = type(base_model(self._model)).__name__
        logger.warning("%s %s, as the first batch showed, so the run keeps the padding.", name, found)
        self._events.note("off", f"training without padding, because {name} {found}")
        return False

    def _decoder_agrees(self, batch: Any, made: Any, tolerance: float) -> bool:
        assert self.plan.head is not None
        padded = self._transfer({name: batch[name] for name in ("input_ids", "attention_mask")})
        row = self._transfer({name: value for name, value in made.items() if name != "labels"})
        places = self._transfer(batch["attention_mask"].flatten().nonzero().squeeze(1))
        expected, given = (hidden_states_of(self._model, self.plan.head, inputs) for inputs in (padded, row))
        if not agree(given[0, : len(places)], expected.flatten(0, 1).index_select(0, places), tolerance):
            return False
        # in 16 bits rounding may hide what texts see of each other, so the first text is changed
        second = int((made["position_ids"][0] == 0).nonzero()[1])
        tokens = made["input_ids"].clone()
        tokens[0, :second] = tokens[0, :second].flip(0).add(1).remainder(int(tokens.max()) + 1)
        changed = {**row, "input_ids": self._transfer(tokens)}
        after = hidden_states_of(self._model, self.plan.head, changed)
        parts = slice(second, len(places))
        return agree(after[0, parts], given[0, parts], tolerance_for(self._model, of_neighbours=True))

    def _encoders_agree(self, batch: Any, tolerance: float) -> bool:
        for texts in texts_in_batch(batch):
            if layout_of(texts.mask) is None or "input_ids" not in texts.inputs:
                continue
            row = self._transfer(dict(texts.inputs))
            padded = {name: tensor.clone() for name, tensor in row.items()}  # without layouts
            layout = layout_of(row["attention_mask"])
            assert layout is not None
            for model, _ in self.plan.encoders:
                expected, given = model(**padded)[0], model(**row)[0]
                count = layout.num_text_tokens
                if not agree(layout.to_row(given)[:, :count], layout.to_row(expected)[:, :count], tolerance):
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
        for expected, given in zip(*(each if isinstance(each, tuple) else (each,) for each in parts), strict=True):
            if not isinstance(expected, torch.Tensor) or not expected.is_floating_point():
                continue
            if expected.shape[:2] == (layout.batch, layout.length):
                if self.plan.loss_of_others:
                    return False
                continue
            if not agree(given.reshape(1, -1), expected.reshape(1, -1), tolerance):
                return False
        return True
