"""Batches joined once are what transformers makes of them one by one."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from transformers.trainer_pt_utils import EvalLoopContainer

from mps_trainer.evaluation.predictions import Batches


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


def leaves(value):
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in leaves(part)]
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    return [value]


def shape(value):
    """The containers of a value, without its arrays."""
    if isinstance(value, (list, tuple)):
        return (type(value), [shape(part) for part in value])
    return (type(value), {key: shape(part) for key, part in value.items()}) if isinstance(value, dict) else None


@pytest.mark.parametrize("every", [None, 1, 2])
@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("batches", CASES.values(), ids=CASES.keys())
def test_arrays_are_those_of_transformers(batches, join, every):
    theirs, ours = EvalLoopContainer(join, padding_index=-100), Batches(join)
    for i, batch in enumerate(batches):
        theirs.add(batch)
        ours.add(batch)
        if every and i % every == 0:
            theirs.to_cpu_and_numpy()
            ours.to_host()
    expected, arrays = theirs.get_arrays(), ours.arrays()
    assert shape(arrays) == shape(expected)
    for mine, other in zip(leaves(arrays), leaves(expected), strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(mine, other)


def test_nothing_added_is_nothing():
    assert Batches(True).arrays() is None
    assert Batches(False).arrays() is None


def test_what_is_no_tensor_is_refused_by_its_type():
    batches = Batches(True)
    batches.add((torch.ones(2), "text"))
    batches.add((torch.ones(2), "text"))
    with pytest.raises(TypeError, match="there is a str among them"):
        batches.arrays()


def test_batches_are_copied_to_the_host_once(mps):
    batches = Batches(True)
    for width in (4, 4, 6, 4):
        batches.add((torch.ones(3, width, device="mps"), torch.ones(3, device="mps")))
    mps.reset()
    batches.arrays()
    report = mps.report()
    assert (report.blocking_reads, report.device_to_host) == (2, 2)
