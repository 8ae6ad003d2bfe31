"""Compiled models recompute activations in the backward pass on the simulated mps device.

The device cannot be simulated in a process that has compiled before, so none of these tests runs on the CPU.
"""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from mps_trainer.model.activation_checkpointing import checkpoint_settings, same_draws_twice
from tests.conftest import Classifier, logged

aten = torch.ops.aten


def test_while_a_graph_is_traced_the_contexts_are_modes_that_recompute_all_but_draws():
    traced = []
    make_fx(lambda x: traced.extend(same_draws_twice()) or x + 1)(torch.ones(1))
    assert all(isinstance(context, TorchDispatchMode) for context in traced)
    assert not any(isinstance(context, TorchDispatchMode) for context in same_draws_twice())
    policies = [traced[0].policy_fn(None, operator) for operator in (aten.native_dropout.default, aten.sin.default)]
    assert policies == [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE]


@pytest.mark.integration  # a process that compiles for the first time needs seconds
def test_a_compiled_graph_keeps_what_was_drawn_and_recomputes_the_rest(mps):
    x = torch.ones(64, 64, device="mps", requires_grad=True)
    settings, saved = checkpoint_settings(None, x.device), []

    def layers(x):
        return nn.functional.dropout(torch.sin(x), 0.5).exp().sin().exp()

    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        y = torch.compile(lambda x: checkpoint(layers, x, **settings), backend="aot_eager")(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != y.max())  # dropped entries have exp(0), the largest y
    assert 0.4 < (x.grad != 0).float().mean() < 0.6
    assert len(saved) == 3  # the input, dropout's output, and its mask


class Recomputing(Classifier):
    """Recomputes the layers between its first and its last one, as models of transformers do."""

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.settings = gradient_checkpointing_kwargs

    def layers(self, hidden):
        return self.norm(torch.tanh(self.dropout(torch.sin(hidden))))

    def forward(self, x, labels=None):
        logits = self.head(checkpoint(self.layers, self.hidden(x), **self.settings))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.integration
@pytest.mark.parametrize("compiled", ["by the argument", "before", "in part"])
def test_a_compiled_model_with_recomputed_dropout_trains_as_one_that_is_not_compiled(mps, make_trainer, compiled):
    def numbers(compiled):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Recomputing(dropout=0.5)
        flags = {"torch_compile": True, "torch_compile_backend": "aot_eager"} if compiled == "by the argument" else {}
        if compiled == "before":
            model.compile(backend="aot_eager")
        if compiled == "in part":
            model.layers = torch.compile(model.layers, backend="aot_eager")
        trainer = make_trainer({"model": model}, max_steps=2, gradient_checkpointing=True, **flags)
        trainer.train()
        return logged(trainer, "loss") + logged(trainer, "grad_norm")

    assert numbers(compiled) == pytest.approx(numbers(None), rel=1e-5)
