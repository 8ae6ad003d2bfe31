"""Gradients are clipped in the optimizer's step, unless somebody looks at them before or after it."""

import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import Trainer
from tests.conftest import logged, weights

pytestmark = pytest.mark.every_device
CLIP = 0.05


def norm_of(model):
    return torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]).item()


@pytest.mark.parametrize("event", ["on_pre_optimizer_step", "on_optimizer_step"])
def test_a_callback_sees_them_clipped_and_nothing_else_changes(make_trainer, event):
    norms = []

    class Watcher(TrainerCallback):
        pass

    setattr(Watcher, event, lambda self, args, state, control, model=None, **kwargs: norms.append(norm_of(model)))
    runs = []
    for callbacks in ([], [Watcher]):
        runs.append(make_trainer({"callbacks": callbacks}, max_steps=4, max_grad_norm=CLIP))
        runs[-1].train()
    assert norms == pytest.approx([CLIP] * 4, rel=1e-4)
    torch.testing.assert_close(*(weights(trainer.model) for trainer in runs))
    assert min(logged(runs[0], "grad_norm")) > CLIP


def test_parameters_that_the_optimizer_does_not_have_count_in_the_norm_as_in_torch(make_trainer, make_model):
    """Their gradients are cleared, too."""
    model = make_model()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    seen = []

    class Watcher(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append(model.hidden.weight.grad)

    trainer = make_trainer(
        {"model": model, "optimizers": (optimizer, None), "callbacks": [Watcher]}, max_steps=2, max_grad_norm=CLIP
    )
    trainer.train()
    assert seen == [None, None]


def test_a_subclass_that_clips_itself_is_left_alone(make_trainer):
    class Own(Trainer):
        def _clip_grad_norm(self, model):
            return torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    runs = []
    for kind in (Own, Trainer):
        runs.append(make_trainer({"kind": kind}, max_steps=3, max_grad_norm=1e-3))
        runs[-1].train()
    torch.testing.assert_close(*(weights(trainer.model) for trainer in runs))
