"""Linear layers with a weight of one dimension, for which mps has no gradients."""

import pytest
import torch
from torch import nn
from transformers import DFineConfig
from transformers.models.d_fine.modeling_d_fine import DFineIntegral

from mps_trainer.errors import explanation_of
from tests.conftest import on_device, weights


class Boxes(nn.Module):
    """Computes four sides of a box for each of two queries, with D-FINE's layer and a trainable weight."""

    def __init__(self, integral=None):
        super().__init__()
        torch.manual_seed(0)
        self.sides = nn.Linear(4, 2 * 4 * 5)
        self.project = nn.Parameter(torch.randn(5))
        self.integral = integral or DFineIntegral(DFineConfig(max_num_bins=4))

    def forward(self, x, labels=None):
        corners = self.sides(x).reshape(-1, 2, 4 * 5)
        logits = self.integral(corners, self.project).sum(1)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Own(nn.Module):
    def forward(self, corners, project):
        return nn.functional.linear(corners.reshape(-1, 5).softmax(1), project).reshape(-1, 2, 4)


def test_d_fine_learns_on_mps_as_on_the_cpu(make_trainer):
    trained = []
    for name in ("cpu", "mps"):
        with on_device(name):
            model = Boxes()
            trainer = make_trainer({"model": model}, max_steps=3, learning_rate=1e-2, use_cpu=name == "cpu")
            trainer.train()
            assert trainer.args.device.type == name
            trained.append(weights(model))
            assert not model.integral._forward_pre_hooks  # none stays after the run
    for name, tensor in trained[0].items():
        torch.testing.assert_close(tensor, trained[1][name].cpu(), msg=name)
    assert not trained[0]["project"].equal(Boxes().project)


def test_another_layer_of_this_kind_is_explained(mps, make_trainer):
    with pytest.raises(RuntimeError, match="mat2 must be a matrix") as caught:
        make_trainer({"model": Boxes(Own())}, max_steps=1, use_cpu=False).train()
    assert explanation_of(caught.value).startswith("mps has no gradients of torch.nn.functional.linear with a weight")
