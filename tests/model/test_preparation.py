"""Preparing a model for training: what the arguments ask for, and that it ends with the run."""

import contextlib

import pytest

from tests.conftest import Classifier, callback
from tests.tiny import tiny


def test_checkpointing_that_is_set_on_existing_arguments_is_used(make_trainer):
    model = Classifier()
    model.gradient_checkpointing_enable = lambda gradient_checkpointing_kwargs: asked.append(True)
    asked = []
    trainer = make_trainer({"model": model}, max_steps=1)
    trainer.args.gradient_checkpointing = True  # the advice for memory says it so
    trainer.train()
    assert asked == [True]


def state_of(model):
    """Returns the hooks of all modules, and what transformers keeps about recomputed activations."""
    hooks = [
        list(each) for module in model.modules() for name, each in vars(module).items() if name.endswith("_hooks")
    ]
    flags = [getattr(module, "gradient_checkpointing", None) for module in model.modules()]
    return hooks, flags, model.is_gradient_checkpointing, vars(model).get("_require_grads_hooks")


@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_training_leaves_neither_hooks_nor_recomputing_layers(make_trainer, by_user, fails):
    model = tiny("BertForSequenceClassification", num_hidden_layers=2)
    if by_user:
        model.activation_checkpointing_enable()
    model.bert.pooler.register_forward_hook(lambda *_: None)
    before, inside, added = state_of(model), [], []

    def look(state, **_):
        inside.append(state_of(model))
        if not added:
            added.append(model.bert.register_forward_hook(lambda *_: None))  # it stays
        if fails and state.global_step == 2:
            raise KeyError

    given = {
        "model": model,
        "train_dataset": [{"input_ids": [1], "labels": 0}] * 4,
        "callbacks": [callback(on_step_end=look)],
    }
    trainer = make_trainer(
        given, max_steps=2, gradient_checkpointing=True, debug="underflow_overflow", per_device_train_batch_size=1
    )
    for _ in range(2):
        with pytest.raises(KeyError) if fails else contextlib.nullcontext():
            trainer.train()
        assert model.bert._forward_hooks.pop(added.pop().id)
        assert state_of(model) == before
    hooks, flags, is_on, _ = inside[0]
    assert sum(map(len, hooks)) > sum(map(len, before[0])) + len(list(model.modules()))
    assert is_on
    assert True in flags
    assert sum(map(len, inside[-2][0])) == sum(map(len, hooks))
