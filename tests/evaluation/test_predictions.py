"""Batches of an evaluation, and their predictions, which are those that transformers joins one by one."""

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten
from transformers.trainer_pt_utils import EvalLoopContainer

from mps_trainer.distributed import Processes
from mps_trainer.evaluation.predictions import Predictions, mean_loss
from tests.conftest import refusal


def tensors(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [(10 * torch.randn(shape, generator=generator)).to(dtype) for shape in shapes]


CASES = {
    "of one width": tensors((3, 4), (3, 4), (1, 4)),
    "of many widths": tensors((3, 4), (3, 4), (2, 7), (1, 2), (2, 7)),
    "three dimensions": tensors((3, 4, 2), (2, 1, 2)),
    "no dimension": tensors((), (), ()),
    "one dimension": tensors((3,), (2,)),
    "one batch": tensors((3, 4)),
    "one number": tensors(()),
    "integers": tensors((3, 4), (2, 5), dtype=torch.int64),
    "bfloat16": tensors((3, 4), (2, 5), dtype=torch.bfloat16),
    "flags": tensors((3, 4), (2, 5), dtype=torch.bool),
    "nested": [
        (a, [b, OrderedDict(c=a)])
        for a, b in zip(tensors((3, 4), (2, 5), (1, 4)), tensors((3,), (2,), (1,)), strict=True)
    ],
}


def empty(join=True, every=None, **settings):
    return Predictions(SimpleNamespace(eval_do_concat_batches=join, eval_accumulation_steps=every), **settings)


def collected(batches, join=True, every=None):
    kept = empty(join, every)
    for batch in batches:
        kept.add(None, 1, batch, None, None)
    return kept.arrays()[1]


@pytest.mark.parametrize("every", [None, 1, 2])
@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("batches", CASES.values(), ids=CASES.keys())
def test_arrays_are_those_of_transformers(batches, join, every):
    theirs = EvalLoopContainer(join, padding_index=-100)
    for i, batch in enumerate(batches):
        theirs.add(batch)
        if every and i % every == 0:
            theirs.to_cpu_and_numpy()
    expected, containers = tree_flatten(theirs.get_arrays())
    arrays, own_containers = tree_flatten(collected(batches, join, every))
    assert own_containers == containers
    for mine, other in zip(arrays, expected, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(mine, other)


def test_outputs_that_are_no_tensors_are_refused_by_their_type():
    with pytest.raises(TypeError, match="there is a str among them"):
        collected([(torch.ones(2), "text")] * 2)


def test_outputs_are_kept_without_the_rest_of_their_batch_and_the_files_of_workers():
    whole, shared, kept = torch.ones(8, 100), torch.ones(8).share_memory_(), empty()
    kept.add(None, 8, whole[:, 0], shared, None)
    _, predictions, labels, _ = kept.arrays()
    assert not np.shares_memory(predictions, whole.numpy())
    assert not np.shares_memory(labels, shared.numpy())


def test_inputs_of_single_batches_are_not_kept_after_their_metrics():
    kept = empty(apart=True)
    for width in (4, 6):  # batches of two widths cannot be joined
        kept.add(None, 2, torch.ones(2, 3), torch.ones(2), {"mask": torch.ones(2, 1, width, width)})
    kept.gather(Processes())
    assert [batch[3]["mask"].shape[-1] for batch in kept.by_batch()] == [4, 6]
    assert kept.arrays()[3] is None


def test_batches_are_copied_to_the_host_once(mps):
    widths = (4, 4, 6, 4)
    batches = [(torch.ones(3, width, device="mps"), torch.ones(3, device="mps")) for width in widths]
    mps.reset()
    collected(batches)
    report = mps.report()
    assert (report.blocking_reads, report.device_to_host) == (2, 2)


@pytest.mark.parametrize(
    ("losses", "finite_only", "expected"),
    [(None, True, None), ([1.0, np.nan], True, 1.0), ([1.0, np.inf], False, np.inf), ([np.inf], True, np.inf)],
)
def test_the_mean_loss_leaves_out_what_is_not_finite(losses, finite_only, expected):
    assert mean_loss(None if losses is None else np.array(losses), finite_only) == expected


@pytest.mark.parametrize("join", [True, False])
def test_arrays_of_numpy_are_taken_like_tensors(join):
    kept, same = empty(join), empty(join)
    for batch in CASES["of many widths"]:
        kept.add(None, len(batch), (batch.numpy(), batch), None, None)
        same.add(None, len(batch), (batch, batch), None, None)
    flat, expected = (tree_flatten(each.arrays()[1])[0] for each in (kept, same))
    assert all(map(np.array_equal, flat, expected))


ROWS = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (ROWS, (ROWS, ROWS), "a tensor in the first batch, and a tuple of 2 in batch 1"),
        ((ROWS, ROWS), ROWS, "a tuple of 2 in the first batch, and a tensor in batch 1"),
        ((ROWS, ROWS), (ROWS, ROWS, ROWS), "a tuple of 2 in the first batch, and a tuple of 3 in batch 1"),
        ({"a": ROWS, "b": ROWS}, {"a": ROWS}, "a dict with a, b in the first batch, and a dict with a in batch 1"),
        (
            {"a": (ROWS, ROWS)},
            {"a": ROWS},
            "a dict with a (a tuple of 2) in the first batch, and a dict with a in batch 1",
        ),
        (
            (ROWS, [ROWS, ROWS]),
            (ROWS, [ROWS]),
            "a tuple of 2 with a list of 2 in the first batch, and a tuple of 2 with a list of 1 in batch 1",
        ),
    ],
)
def test_joined_batches_whose_outputs_differ_in_kind_are_refused_at_once(first, second, says):
    kept = empty()
    kept.add(None, 3, first, None, None)
    text = refusal(kept.add, None, 3, second, None, None, kind=TypeError)
    assert f"The model's outputs are {says}, counted from 0" in text
    assert "missing or None in some batches. Return it for each, or leave it out with ignore_keys" in text


def test_outputs_that_are_not_kept_may_differ():
    kept = empty(keep_outputs=False)
    for outputs in ((ROWS, ROWS), ROWS):
        kept.add(torch.ones(()), 3, outputs, None, None)
    assert len(kept.arrays()[0]) == 6


def test_batches_that_are_not_joined_may_have_other_outputs():
    found = collected([(torch.ones(3), torch.ones(3)), torch.ones(3)], join=False)
    assert [type(batch) for batch in found] == [tuple, np.ndarray]
