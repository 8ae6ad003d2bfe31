"""Results of operators on fake tensors that are remembered by the form of their arguments."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten

from mps_trainer.fit import fake_tensors
from mps_trainer.fit.fake_tensors import fake_mode, fake_of, quickly
from mps_trainer.fit.memory_tracker import ACTIVATIONS, MemoryTracker

ATEN = torch.ops.aten
ROWS = torch.arange(24.0).view(4, 6)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(fake_tensors, "_results", {})


def fakes(value):
    if isinstance(value, torch.Tensor):
        return fake_of(value)
    return [fakes(each) for each in value] if isinstance(value, list) else value


def forms(value):
    flat = tree_flatten(value)[0]
    return type(value) if isinstance(value, tuple | list) else torch.Tensor, [
        (each.shape, each.stride(), each.dtype, each.untyped_storage().nbytes()) if torch.is_tensor(each) else each
        for each in flat
    ]


PURE = {
    "sum of two": (ATEN.add.Tensor, (ROWS, ROWS)),
    "transposed": (ATEN.add.Tensor, (ROWS.t(), ROWS.t())),
    "broadcast": (ATEN.mul.Tensor, (ROWS, ROWS[:1])),
    "of a list": (ATEN.cat.default, ([ROWS, ROWS.bfloat16()], 1)),
    "product": (ATEN.mm.default, (ROWS, ROWS.t())),
    "several results": (ATEN.native_layer_norm.default, (ROWS, [6], torch.ones(6), torch.ones(6), 1e-5)),
    "optional results": (
        ATEN.native_layer_norm_backward.default,
        (ROWS, ROWS, [6], ROWS[:, :1], ROWS[:, :1], torch.ones(6), None, [True, True, False]),
    ),
    "a list of results": (ATEN._foreach_mul.Scalar, ([ROWS, ROWS[0]], 2.0)),
    "other format": (ATEN._to_copy.default, (ROWS,), {"dtype": torch.bfloat16}),
    "other order": (ATEN.clone.default, (ROWS.t(),), {"memory_format": torch.contiguous_format}),
    "of a part": (ATEN.neg.default, (ROWS[1:, 2:],)),
}


@pytest.mark.parametrize("name", PURE)
def test_what_is_remembered_is_what_torch_gives(name):
    func, args, kwargs = (*PURE[name], {})[:3]
    expected = forms(func(*args, **kwargs))
    with fake_mode():
        first = quickly(func, tuple(fakes(each) for each in args), kwargs)
        assert len(fake_tensors._results) == 1
        second = quickly(func, tuple(fakes(each) for each in args), kwargs)
    assert forms(first) == forms(second) == expected
    assert len(fake_tensors._results) == 1
    storages = [each.untyped_storage()._cdata for each in tree_flatten([first, second])[0] if torch.is_tensor(each)]
    assert len(set(storages)) == len(storages)


def test_the_operator_is_not_asked_twice(monkeypatch):
    made = []
    plain = fake_tensors._made_again
    monkeypatch.setattr(fake_tensors, "_made_again", lambda known: made.append(known) or plain(known))
    with fake_mode():
        for _ in range(3):
            quickly(ATEN.mm.default, (fake_of(ROWS), fake_of(ROWS.t())), {})
    assert len(made) == 2


DIFFERENT = {
    "shape": (ATEN.neg.default, (ROWS,), (ROWS[:2],)),
    "strides": (ATEN.neg.default, (ROWS,), (torch.empty_strided((4, 6), (1, 4)),)),
    "format": (ATEN.neg.default, (ROWS,), (ROWS.double(),)),
    "operator": (ATEN.neg.default, (ROWS,), ATEN.signbit.default),
    "kind of number": (ATEN.mul.Scalar, (ROWS.long(), 1), (ROWS.long(), 1.0)),
    "truth and number": (ATEN.mul.Scalar, (ROWS.bool(), True), (ROWS.bool(), 1)),
    "dimension": (ATEN.sum.dim_IntList, (ROWS, [0]), (ROWS, [1])),
    "lists": (ATEN.cat.default, ([ROWS, ROWS[:2]],), ([ROWS[:2], ROWS, ROWS],)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_arguments_that_differ_have_results_of_their_own(name):
    func, first, second = DIFFERENT[name]
    other, second = (func, second) if isinstance(second, tuple) else (second, first)
    with fake_mode():
        given = [quickly(each, tuple(map(fakes, args)), {}) for each, args in ((func, first), (other, second))]
    assert [forms(each) for each in given] == [forms(func(*first)), forms(other(*second))]
    assert forms(given[0]) != forms(given[1])


def test_keywords_tell_results_apart():
    fake = fake_of(ROWS)
    with fake_mode():
        results = [quickly(ATEN.sum.dim_IntList, (fake, [0]), settings) for settings in ({"keepdim": True}, {})]
        dtypes = [
            quickly(ATEN._to_copy.default, (fake,), {"dtype": dtype}).dtype for dtype in (torch.half, torch.double)
        ]
    assert [each.shape for each in results] == [(1, 6), (6,)]
    assert dtypes == [torch.half, torch.double]


def test_the_default_format_tells_results_apart():
    with fake_mode():
        settings = {"device": torch.device("meta")}
        first = quickly(ATEN.ones.default, ([3],), settings)
        torch.set_default_dtype(torch.float64)
        try:
            second = quickly(ATEN.ones.default, ([3],), settings)
        finally:
            torch.set_default_dtype(torch.float32)
    assert (first.dtype, second.dtype) == (torch.float32, torch.float64)


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (ATEN.view.default, ([6, 4],)),
        (ATEN._unsafe_view.default, ([6, 4],)),
        (ATEN.t.default, ()),
        (ATEN.detach.default, ()),
        (ATEN.split.Tensor, (2,)),
        (ATEN.expand.default, ([2, 4, 6],)),
    ],
)
def test_results_that_share_memory_with_an_argument_go_on_sharing_it(func, args, monkeypatch):
    with fake_mode():
        for _ in range(2):
            fake = fake_of(ROWS)
            with monkeypatch.context() as patched:
                patched.setattr(FakeTensorMode, "dispatch", None)  # torch's own way is slower
                result = quickly(func, (fake, *args), {})
            first = result[0] if isinstance(result, list | tuple) else result
            assert first.untyped_storage()._cdata == fake.untyped_storage()._cdata
    assert not fake_tensors._results


def test_what_is_changed_in_place_is_the_same_tensor():
    with fake_mode():
        for _ in range(2):
            fake = fake_of(ROWS)
            assert quickly(ATEN.add_.Tensor, (fake, 1), {}) is fake
            out = fake_of(ROWS)
            assert quickly(ATEN.add.out, (fake, fake), {"out": out}) is out
    assert not fake_tensors._results


def test_memory_is_counted_as_without_remembering(monkeypatch):
    def peak():
        with fake_mode(), MemoryTracker() as tracker:
            for _ in range(3):
                rows = fake_of(ROWS) @ fake_of(ROWS.t())
                kept = [rows.view(16) * 2, rows.reshape(2, 8), torch.ops.aten._unsafe_view(rows + 1, [8, 2])]
                del rows
                kept.append(kept[1].t().contiguous())
        return tracker.peak

    remembered = peak()
    monkeypatch.setattr(fake_tensors, "_is_pure", lambda func: False)
    assert remembered == peak()
    assert remembered[ACTIVATIONS] > 0


def test_results_that_depend_on_more_than_form_are_not_remembered():
    with fake_mode():
        fake = fake_of(ROWS)
        complex_ = torch.complex(fake, fake)
        before = len(fake_tensors._results)
        quickly(ATEN.mul.Tensor, (complex_, complex_), {})
        quickly(ATEN.bernoulli.default, (fake,), {"generator": torch.Generator()})
    assert len(fake_tensors._results) == before


def test_names_and_lists_of_arguments_tell_keys_apart():
    key = fake_tensors._key
    assert key(ATEN.add.Tensor, (), {"alpha": 1}) != key(ATEN.add.Tensor, (), {"other": 1})
    assert key(ATEN.cat.default, ([1], [2]), {}) != key(ATEN.cat.default, ([1, 2], []), {})
    assert key(ATEN.cat.default, ([1, 2],), {}) == key(ATEN.cat.default, ([1, 2],), {})


@pytest.mark.integration
def test_the_simulated_device_can_be_added_after_a_fake_step():
    code = """
from mps_trainer.simulator import SimulatorUnavailableError, simulated_mps
import torch
from mps_trainer.fit.fake_tensors import fake_mode, fake_of
with fake_mode():
    (fake_of(torch.ones(2, requires_grad=True)) * 2).sum().backward()
try:
    with simulated_mps():
        print(torch.ones(2, device="mps").sum().item())
except SimulatorUnavailableError:
    print("unavailable")
"""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert ran.stdout.strip() in ("2.0", "unavailable"), ran.stderr
