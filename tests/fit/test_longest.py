"""The longest text that fits, and the time that a step cannot be faster than."""

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mps_trainer import Trainer
from mps_trainer.fit import estimate
from mps_trainer.tools.fit.chips import CHIPS, Chip, least_seconds
from mps_trainer.tools.fit.fit_report import SIZES
from mps_trainer.tools.fit.longest import MOST, STEP, longest, longest_texts
from mps_trainer.tools.fit.step import StepCost, as_on_mps, largest_batch, measure_step
from tests.conftest import refusal
from tests.fit.test_estimate import LENGTH, image, llama, text, vit
from tests.tiny import tiny


@given(
    base=st.integers(0, 10**6),
    linear=st.integers(1, 10**4),
    square=st.integers(0, 50),
    border=st.integers(0, 2 * MOST),
    most=st.integers(1, MOST),
)
def test_longest_fits_and_the_next_does_not(base, linear, square, border, most):
    def bytes_of(tokens):
        return base + linear * tokens + square * tokens**2

    peak, shortest = functools.cache(bytes_of), min(STEP, most)
    found = longest(peak, bytes_of(border), shortest, most)
    if found is None:
        assert border < shortest
    else:
        assert found <= border
        assert found == most or found + max(STEP, found // 16) + STEP > border
    assert peak.cache_info().currsize < 40


def trainer_of(make_args, model, rows, **settings):
    return Trainer(model, make_args(per_device_train_batch_size=2, **settings), train_dataset=rows)


def test_report_names_the_longest_text_of_each_mac_and_a_bound_for_each_chip(make_args):
    trainer = trainer_of(make_args, llama(max_position_embeddings=200), [text() for _ in range(4)])
    report = estimate(trainer, longest=True)
    assert report.longest_texts == dict.fromkeys(SIZES, 200)  # all positions of a small model
    assert "longest" in report.table()
    assert "longest" not in replace(report, longest_texts=None).table()
    assert report.to_dict()["least_seconds"].keys() == CHIPS.keys()
    lines = report.table().partition("No faster than")[2].splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["M1", "M2", "M3", "M4", "M5"]


def test_a_limit_between_two_lengths_is_found(make_args):
    trainer = trainer_of(make_args, llama(max_position_embeddings=4096), [text() for _ in range(4)])
    with as_on_mps():
        peaks = {}
        for length in (1024, 1400):
            longer = trainer_of(make_args, trainer.model, [text(length) for _ in range(2)])
            peaks[length] = measure_step(longer, largest_batch(longer, 1)).bytes_peak
        found = longest_texts(trainer, largest_batch(trainer, 1), [*peaks.values(), 0], lambda _: None)
    assert found[peaks[1024]] == 1024
    assert 1024 < found[peaks[1400]] <= 1400
    assert found[0] is None


@pytest.mark.parametrize("positions", [202, 300])
def test_positions_and_labels_limit_no_text_wrongly(make_args, positions):
    """RoBERTa's positions begin after two others; labels of several classes are no text, whatever their number."""
    sizes = {"max_position_embeddings": positions, "num_labels": LENGTH, "num_hidden_layers": 1, "pad_token_id": 1}
    rows = [{"input_ids": text()["input_ids"] % 60 + 2, "labels": torch.zeros(LENGTH)} for _ in range(4)]
    trainer = trainer_of(make_args, tiny("RobertaForSequenceClassification", **sizes), rows)
    with as_on_mps():
        found = longest_texts(trainer, largest_batch(trainer, 1), [2**40], lambda _: None)
    assert found == {2**40: positions - 2}


def test_a_batch_without_tokens_is_refused(make_args):
    trainer = trainer_of(make_args, vit(), [image() for _ in range(4)])
    assert "--longest needs batches with input_ids" in refusal(estimate, trainer, longest=True)


class Weighted(Trainer):
    def compute_loss(self, model, inputs, **kwargs):
        weights = inputs.pop("weights")
        return (model(**inputs).logits[..., 0] * weights).mean()


def test_a_step_that_fails_with_longer_texts_is_explained(make_args):
    rows = [{**text(), "weights": torch.ones(LENGTH)} for _ in range(4)]
    trainer = Weighted(llama(), make_args(remove_unused_columns=False), train_dataset=rows)
    assert "The step of LlamaForCausalLM failed with RuntimeError" in refusal(estimate, trainer, longest=True)


def cost_of(make_args, **settings):
    trainer = trainer_of(make_args, llama(), [text() for _ in range(4)], **settings)
    with as_on_mps():
        return trainer.model, measure_step(trainer, largest_batch(trainer, 1))


def test_operations_are_those_of_the_products_and_add_up(make_args):
    model, cost = cost_of(make_args)
    config, tokens = model.config, 2 * LENGTH
    layers = [each.weight for each in model.modules() if isinstance(each, torch.nn.Linear)]
    # scores and their sums, for each token
    attention = 2 * config.num_hidden_layers * LENGTH * config.hidden_size
    products = 3 * 2 * tokens * (sum(each.numel() for each in layers) + attention)
    assert cost.operations == pytest.approx(products, rel=0.01)
    _, twice = cost_of(make_args, gradient_accumulation_steps=2)
    assert twice.operations == pytest.approx(2 * cost.operations)
    assert twice.bytes_moved - cost.bytes_moved == sum(each.nbytes for each in layers)


@pytest.mark.parametrize("rows", [7, 16, LENGTH])
def test_operations_of_attention_in_chunks_are_those_of_all_blocks(make_args, monkeypatch, rows):
    """The forward pass of all blocks, their second one in the backward pass, and four products there."""
    monkeypatch.setattr("mps_trainer.model.chunked_attention.ROWS", rows)
    model, cost = cost_of(make_args, chunked_attention=True)
    _, plain = cost_of(make_args)
    blocks = [(start, min(start + rows, LENGTH)) for start in range(0, LENGTH, rows)]
    pairs = sum((end - start) * end for start, end in blocks)
    layers, width = model.config.num_hidden_layers, model.config.hidden_size
    of_plain, of_chunks = 6 * 2 * LENGTH**2, 7 * 2 * pairs
    expected = plain.operations + 2 * layers * width * (of_chunks - of_plain)  # the batch has two texts
    assert cost.operations == pytest.approx(expected, rel=0.01)


def test_a_step_takes_at_least_the_longer_of_computing_and_moving():
    cost = StepCost({}, operations=6e12, bytes_moved=10**11)
    assert least_seconds(Chip(2.0, 100), cost) == 3.0
    assert least_seconds(Chip(100.0, 50), cost) == 2.0
    assert least_seconds(Chip(None, 50), cost) == 2.0
