"""The trace itself: it changes no result, leaves no trace behind, and its report can be read by machines."""

import pytest
import torch
from torch import nn

from mps_trainer.check import CoverageReport, DtypeProblem, OperatorUse, Support, Tracer, trace
from mps_trainer.tools.check.coverage_report import LargeProduct
from tests.conftest import logged, refusal, weights
from tests.tiny import tiny

from .conftest import bad, names


def test_what_is_computed_under_the_trace_is_what_is_computed_without_it(trained):
    def run():
        rows = [{"input_ids": [1 + i % 5, 7, 9], "labels": i % 2} for i in range(24)]
        trainer = trained({"model": tiny("BertForSequenceClassification"), "train_dataset": rows}, max_steps=3)
        return logged(trainer, "loss"), weights(trainer.model), torch.get_rng_state()

    plain = run()
    with Tracer() as tracer:
        traced = run()
    torch.testing.assert_close(traced, plain)
    assert names(tracer.report(), Support.NATIVE)


def test_the_trace_leaves_nothing_behind():
    call = nn.Module.__call__
    flash = torch.backends.cuda.flash_sdp_enabled()

    def fail() -> None:
        with tracer:
            nn.Linear(2, 2)(torch.ones(1, 2))
            raise ZeroDivisionError

    tracer = Tracer()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert nn.Module.__call__ is call
    assert torch.backends.cuda.flash_sdp_enabled() is flash
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    before = len(tracer.report().operators)
    nn.Linear(2, 2)(torch.ones(1, 2))
    assert len(tracer.report().operators) == before > 0


def test_a_tracer_can_be_entered_for_each_step_and_adds_up():
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    tracer = Tracer()
    for count in (1, 2):
        with tracer:
            model(x)
            assert "recording already" in refusal(tracer.__enter__, kind=RuntimeError)
        (use,) = [use for use in tracer.report().operators if use.name == "aten::addmm"]
        assert use.calls == count


def test_phases_are_told_apart_in_a_loop_of_one_s_own_and_can_be_named():
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracer(unknown_on_device=True) as tracer:
        for _ in range(2):
            model(x).relu().square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(x).argmax(-1)
        with tracer.phase("optimizer"):
            torch.ones(3, device=torch.device("cpu")).sigmoid()
    phases = {use.name: use.phase for use in tracer.report().operators}
    assert phases["aten::relu"] == "forward"
    assert phases["aten::threshold_backward"] == "backward"
    assert phases["aten::linalg_vector_norm"] == phases["aten::sigmoid"] == "optimizer"
    assert phases["aten::argmax"] == "evaluation"
    model.weight.grad = torch.ones(2, 3)
    report = trace(optimizer.step)  # without a backward pass before it
    assert {use.phase for use in report.operators} == {"optimizer"}


def test_the_trainer_of_transformers_style_loops_is_traced_through_its_optimizer_and_loss_modules():
    """A loss module has no weights: its inputs are no batch."""
    model, loss = nn.Linear(3, 2), nn.CrossEntropyLoss()
    report = trace(lambda: loss(model(torch.randn(4, 3)), torch.tensor([0, 1, 0, 1])).backward())
    assert report.batch_shapes == [{"input": "float32[4, 3]"}]


def test_the_table_puts_the_most_serious_first_and_fits_its_width():
    x = torch.randn(4, 3)

    def step() -> None:
        x.sum().item()
        x.double()
        torch.nn.functional.embedding(torch.zeros(1, dtype=torch.long, device=x.device), x, max_norm=1.0)
        x[:3].mode()

    report = trace(step, fallback=False)
    lines = str(report).splitlines()
    rows = str(report).split("\n\n")[1].splitlines()[2:]
    verdicts = [line.split("  ")[0] for line in rows if not line.startswith(" ")]
    assert verdicts == ["fails", "fails", "falls back", "waits"]
    assert "aten::mode" in lines[4]
    verbose = report.table(verbose=True)
    assert "aten::as_strided" in verbose
    assert "aten::as_strided" not in str(report)
    assert max(map(len, verbose.splitlines())) <= 120


FLOAT64 = DtypeProblem("weight", "float64", True, "Make it float32.")
TRAINS = "this step should train on a Mac"
STOPS = "this step would stop on a Mac at {}. See the last column of the table."


def used(names: str, support: Support) -> list[OperatorUse]:
    return [OperatorUse(name, support, "forward", 1, 1, None) for name in names]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({}, f"{TRAINS} without fallbacks."),
        ({"operators": used("a", Support.NATIVE) + used("b", Support.FALLS_BACK)}, f"{TRAINS}, with b on the CPU."),
        (
            {"large_products": [LargeProduct("aten::mm", "backward", 1, 40_000, False, None)]},
            f"{TRAINS} without fallbacks. On M1 and M2, matrix products in the table may be wrong.",
        ),
        ({"operators": used("a", Support.FAILS), "dtype_problems": [FLOAT64]}, STOPS.format("a, weight (float64)")),
        ({"operators": used("aabcde", Support.FAILS)}, STOPS.format("a, b, c and 2 more")),
    ],
)
def test_a_report_ends_with_a_verdict(found, verdict):
    report = CoverageReport("2.0", False, **found)
    assert report.verdict == verdict
    assert " ".join(str(report).split("\n\n")[-1].split()) == f"Verdict: {verdict}"


@pytest.mark.parametrize("on", [True, False])
def test_the_fallback_switch_is_taken_as_torch_took_it(monkeypatch, on):
    monkeypatch.setattr("mps_trainer.tools.check.tracer.fallback_when_torch_loaded", lambda: on)
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", str(int(not on)))
    assert Tracer().report().fallback is on


def test_vmap_and_masks_made_by_it_are_traced():
    rows = torch.randn(4)
    masks = trace(lambda: torch.vmap(lambda i: i.sin() + torch.arange(3, device=i.device))(rows))
    assert bad(masks) == set()
    assert "aten::sin" in names(masks)
