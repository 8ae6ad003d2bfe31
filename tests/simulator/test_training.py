"""Training works on the device, with the numbers of the CPU."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from mps_trainer.devices.facts import parse_version

from ..conftest import assert_same_weights, on_device

DEVICES = ("cpu", "mps")


def assert_same(on_cpu: list[torch.Tensor], on_mps: list[torch.Tensor], tolerance: float = 0) -> None:
    """Equal in every bit unless a tolerance is given, and the second really on the device."""
    assert len(on_cpu) == len(on_mps)
    assert {tensor.device.type for tensor in on_mps} == {"mps"}
    for expected, found in zip(on_cpu, on_mps, strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def forward_and_backward(make: Callable[[], nn.Module], inputs: tuple, device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    module = make().to(device)
    inputs = [tensor.detach().to(device).requires_grad_() for tensor in inputs]
    torch.manual_seed(1)
    results = tree_leaves(module(*inputs))
    sum((result * result).sum() for result in results).backward()
    return [*results, *(leaf.grad for leaf in (*inputs, *module.parameters()) if leaf.grad is not None)]


def draw(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


# Those made of several operators, or with a choice by device. test_operators.py compares single ones.
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple]] = {
    "LSTM": (lambda: nn.LSTM(4, 6, num_layers=2, batch_first=True), (draw(3, 5, 4),)),
    "LSTM, both ways": (lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True, dropout=0.4), (draw(5, 3, 4),)),
    "GRU": (lambda: nn.GRU(4, 6, num_layers=2), (draw(5, 3, 4),)),
    "RNN": (lambda: nn.RNN(4, 6), (draw(5, 3, 4),)),
    "MultiheadAttention": (SelfAttention, (draw(2, 5, 8),)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (draw(2, 5, 8),)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), (draw(5, 2, 8), draw(4, 2, 8))),
}


# Here the CPU takes another way than other devices: it multiplies a sequence at once in an RNN, and folds a batch into
# rows where a gradient is wanted. The sums are the same, rounded in another order.
ROUNDED = {"GRU", "RNN", "MultiheadAttention", "TransformerEncoderLayer"}


@pytest.mark.parametrize("name", MODULES)
def test_module_agrees_with_the_cpu(name):
    # the CPU has a fused attention kernel with other rounding
    with on_device("mps", same_draws_as_cpu=True) as mps, sdpa_kernel(SDPBackend.MATH):
        on_cpu, on_mps = (forward_and_backward(*MODULES[name], device) for device in DEVICES)
        assert_same(on_cpu, on_mps, tolerance=1e-5 if name in ROUNDED else 0)
        assert not mps.report().fell_back


def optimizers() -> list[tuple[str, dict[str, object]]]:
    """Every optimizer of torch with its defaults, and in each way that torch allows for on mps."""
    cases = [("SGD", {"momentum": 0.9}), ("AdamW", {"amsgrad": True}), ("RMSprop", {"momentum": 0.9})]
    ways = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}]
    for name in vars(torch.optim).keys() - {"Optimizer", "SparseAdam"}:
        kind = getattr(torch.optim, name)
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer):
            taken = inspect.signature(kind).parameters.keys() - ({"fused"} if name == "Adagrad" else {})
            cases += [(name, way) for way in ways if way.keys() <= taken]
    return sorted(cases, key=str)


def steps(name: str, options: dict[str, object], device: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)).to(device)
    x, y = draw(6, 4).to(device), torch.tensor([0, 1, 2, 1, 0, 2], device=device)
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return {key: tensor.cpu() for key, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("name", "options"), optimizers())
def test_optimizer_agrees_with_the_cpu_bit_for_bit(mps, name, options):
    assert_same_weights(steps(name, options, "cpu"), steps(name, options, "mps"))


def attend(graph: bool) -> None:
    q = draw(2, 2, 4, 8).to("mps").requires_grad_(graph)
    result = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    if graph:
        result.sum().backward()


def in_lstm() -> None:
    nn.LSTM(4, 6, num_layers=2, device="mps")(torch.ones(9, 3, 4, device="mps"))[0].sum().backward()


def normed(graph: bool) -> None:
    with torch.set_grad_enabled(graph):
        nn.RMSNorm(4, device="mps")(draw(3, 4).to("mps"))


FUSED_ATTENTION = "_scaled_dot_product_attention_math_for_mps"
# What is computed, kernels that run for it, and others that do not.
KERNELS = {
    "AdamW, fused": (lambda: steps("AdamW", {"fused": True}, "mps"), "_fused_adamw_", ""),
    "AdamW": (lambda: steps("AdamW", {}, "mps"), "addcdiv_", "_fused_adamw_"),
    "AdamW, foreach": (lambda: steps("AdamW", {"foreach": True}, "mps"), "", "_foreach"),  # hardware has none
    "attention": (lambda: attend(False), FUSED_ATTENTION, "bmm"),
    "attention with a graph": (lambda: attend(True), "bmm _softmax", FUSED_ATTENTION),
    "LSTM": (in_lstm, "_lstm_mps lstm_mps_backward", "sigmoid"),
    "RMS norm": (lambda: normed(False), "_fused_rms_norm", ""),
    "RMS norm with a graph": (lambda: normed(True), "", "_fused_rms_norm"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_that_run_are_those_that_hardware_has(mps, name):
    compute, run, others = KERNELS[name]
    mps.reset()
    compute()
    calls = {operator.name.removeprefix("aten::"): operator.calls for operator in mps.report().operators}
    assert set(run.split()) <= calls.keys()
    assert not [other for other in others.split() for ran in calls if ran.startswith(other)]
    assert name != "LSTM" or calls["_lstm_mps"] == calls["lstm_mps_backward"] == 1


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": True}])
def test_attention_without_gradients_agrees_with_the_cpu_bit_for_bit(mps, options):
    found = []
    with sdpa_kernel(SDPBackend.MATH):
        for device in DEVICES:
            given = [draw(2, 2, 4, size).to(device) for size in (8, 8, 6)]
            mask = {"attn_mask": torch.eye(4, dtype=torch.bool, device=device)} if "attn_mask" in options else {}
            found.append([nn.functional.scaled_dot_product_attention(*given, **{**options, **mask})])
    assert_same(*found)


@pytest.mark.parametrize(("size", "fits"), [(64, True), (48, False)])
def test_fused_attention_keeps_no_scores_and_needs_no_graph(size, fits):
    if parse_version(torch.__version__) < (2, 14):
        pytest.skip("this torch has no fused attention")
    with on_device("mps", memory=64 * 2**20) as mps:
        query = torch.zeros(1, 1, 4096, size, device="mps")  # its scores take 64 MiB

        def compute() -> None:
            nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)

        assert mps is not None
        if fits:
            compute()
            (operator,) = [each for each in mps.report().operators if each.name.endswith(FUSED_ATTENTION)]
            assert (operator.calls, operator.graphs) == (1, 0)
        else:
            with pytest.raises(RuntimeError, match="MPS backend out of memory"):
                compute()
