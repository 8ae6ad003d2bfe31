"""Models that are wrapped before the Trainer gets them train as they do without the wrapper."""

import functools

import pytest
import torch
from torch import nn

from mps_trainer.model.introspection import base_model, unwrapped
from tests.conftest import Classifier, examples, logged
from tests.tiny import tiny, with_lora


class Named(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class Unnamed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def decorated(model):
    forward = model.forward

    @functools.wraps(forward)
    def traced(*args, **kwargs):
        return forward(*args, **kwargs)

    del traced.__wrapped__  # decorators without functools.wraps set none
    model.forward = traced
    return model


def compiled(model):
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")


TOLD = {
    "DataParallel": nn.DataParallel,
    "named": Named,
    "twice": lambda model: Named(nn.DataParallel(model)),
    "compiled": compiled,
}
NOT_TOLD = {"unnamed": Unnamed, "decorated": decorated}


@pytest.fixture
def losses(make_trainer, make_model):
    """`losses(wrap, **settings)` returns the losses of a run with accumulation, and of its evaluations."""

    def run(wrap, **settings):
        given = {"model": wrap(make_model(dropout=0.0)), "train_dataset": examples(30)}
        sizes = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
        trainer = make_trainer(given, **sizes, eval_strategy="epoch", num_train_epochs=1, **settings)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        return [before, *logged(trainer, "loss"), *logged(trainer, "eval_loss")]

    return run


@pytest.mark.parametrize("wrap", TOLD.values(), ids=TOLD)
def test_a_wrapped_model_trains_as_the_model_inside(losses, wrap):
    assert losses(wrap) == losses(lambda model: model)


@pytest.mark.parametrize("wrap", NOT_TOLD.values(), ids=NOT_TOLD)
def test_the_first_batch_shows_that_the_model_inside_takes_no_number_of_items(losses, wrap):
    settings = {"label_names": ["labels"], "remove_unused_columns": False}
    assert losses(wrap, **settings) == losses(lambda model: model)


def test_a_type_error_of_the_model_is_left_alone(losses):
    class Broken(Unnamed):
        def forward(self, *args, **kwargs):
            raise TypeError("forward() got an unexpected keyword argument 'y'")

    with pytest.raises(TypeError, match="argument 'y'"):
        losses(Broken, label_names=["labels"], remove_unused_columns=False)


class Headed(nn.Module):
    """Has a part named `module`, and more."""

    def __init__(self):
        super().__init__()
        self.module, self.head = Classifier(), nn.Linear(2, 2)

    def forward(self, x, **kwargs):
        return self.head(self.module(x)["logits"])


def test_only_what_passes_all_arguments_on_is_a_wrapper():
    model, headed = Classifier(), Headed()
    assert unwrapped(Named(nn.DataParallel(compiled(model)))) is model
    assert unwrapped(headed) is headed
    assert unwrapped(unnamed := Unnamed(model)) is unnamed
    adapted = with_lora(tiny("GPT2LMHeadModel"))
    assert base_model(nn.DataParallel(adapted)) is adapted.get_base_model()
