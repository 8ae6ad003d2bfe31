"""Errors about float64 and complex128, which mps does not have, name the tensor or the line of the model."""

import numpy as np
import pytest
import torch
from torch import nn

from mps_trainer.errors import explanation_of
from tests.conftest import Classifier, examples, refusal


class Scaled(Classifier):
    """Has tensors of its own, in the module that makes them."""

    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.norm.register_parameter(name, tensor)
            else:
                self.norm.register_buffer(name, tensor, persistent=False)


WIDE = torch.ones(4, dtype=torch.float64)


@pytest.mark.usefixtures("mps")
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            lambda: Scaled(scale=torch.from_numpy(np.ones(4))),
            "mps has no float64, and buffer 'norm.scale' of Scaled is float64 (1 such tensor in all). Call "
            "model.float() before you give it to the Trainer, or make the buffer float32 where LayerNorm creates it.",
        ),
        (
            lambda: Scaled(gain=nn.Parameter(WIDE.clone()), scale=WIDE),
            "parameter 'norm.gain' of Scaled is float64 (2 such tensors in all). Call model.float()",
        ),
        (lambda: Classifier().double(), "parameter 'hidden.weight' of Classifier is float64 (6 such tensors in all)"),
        (
            lambda: Scaled(turns=torch.exp(1j * WIDE)),
            "mps has no complex128, and buffer 'norm.turns' of Scaled is complex128 (1 such tensor in all). What to "
            "do: make the buffer complex64 where LayerNorm creates it.",
        ),
        (
            lambda: nn.Sequential(nn.Embedding.from_pretrained(WIDE[None])),
            "parameter '0.weight' of Sequential is float64 (1 such tensor in all)",
        ),
    ],
    ids=["buffer", "parameter", "double", "complex", "embedding"],
)
def test_the_first_tensor_that_mps_does_not_have_is_named(make_trainer, model, says):
    assert says in refusal(make_trainer, {"model": model()}, kind=TypeError)


@pytest.mark.usefixtures("mps")
def test_a_model_that_the_trainer_moves_later_is_checked_then(make_trainer):
    trainer = make_trainer({"model": Classifier().double()}, bf16_full_eval=True, max_steps=1)
    assert "'hidden.weight' of Classifier is float64" in refusal(trainer.train, kind=TypeError)


def test_the_cpu_has_them(make_trainer):
    rows = [{**row, "x": row["x"].double()} for row in examples(8)]
    assert make_trainer({"model": Classifier().double(), "train_dataset": rows}, max_steps=1).train().global_step == 1


class Computes(Classifier):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x, labels=None):
        return super().forward(self.compute(x), labels)


def to_double(x):
    return x.double().float()  # here


def sinusoid(x):
    return x + torch.arange(4, dtype=torch.float64, device=x.device).sin().float()  # here


def table(x):
    wide = torch.from_numpy(np.ones(4))
    return x * wide.to(x.device).float()  # here


def to_complex(x):
    return x.to(torch.complex128).real.float()  # here


@pytest.mark.usefixtures("mps")
@pytest.mark.parametrize("compute", [to_double, sinusoid, table, to_complex])
@pytest.mark.parametrize("work", ["train", "evaluate", "predict"])
def test_the_line_that_makes_one_is_named(make_trainer, compute, work):
    trainer = make_trainer({"model": Computes(compute)}, max_steps=1)
    with pytest.raises(TypeError) as caught:
        trainer.predict(examples(4)) if work == "predict" else getattr(trainer, work)()
    first, kind, other = compute.__code__.co_firstlineno, "float64", "float32"
    line = first + (2 if compute is table else 1)
    if compute is to_complex:
        kind, other = "complex128", "complex64"
    assert explanation_of(caught.value) == (
        f"model/test_number_formats.py:{line} makes a {kind} tensor on mps, which has no such format: "
        f"`{_source(line)}`. Ask for {other} there."
    )


def _source(line):
    with open(__file__, encoding="utf-8") as file:
        return file.readlines()[line - 1].strip()


@pytest.mark.usefixtures("mps")
def test_columns_in_these_formats_are_converted(make_trainer):
    class Adds(Classifier):
        def forward(self, x, turns, labels=None):
            assert (x.dtype, turns.dtype) == (torch.float32, torch.complex64)
            return super().forward(x + turns.real, labels)

    rows = [{**row, "x": row["x"].double(), "turns": torch.exp(1j * WIDE)} for row in examples(8)]
    assert make_trainer({"model": Adds(), "train_dataset": rows}, max_steps=1).train().global_step == 1
