"""Steps are timed after a warm-up, both sides alternate, and a failure of one leaves the other."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from mps_trainer.devices import DeviceRequest, gather_facts, resolve
from mps_trainer.errors import MisconfigurationException
from mps_trainer.tools.speed import WORKLOADS, Measured, Plan, run, run_speed
from mps_trainer.tools.speed.run import TimeLeft, alternate, seconds_of
from mps_trainer.tools.speed.training import LEAST, MOST, Measurement, StepTimer, how_many
from mps_trainer.tools.speed.workloads import QUICK, Operation, Task, Workload
from tests.conftest import refusal

CPU = torch.device("cpu")
SHORT = Plan(quick=True, rounds=2, seconds=0.0, budget=60.0)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # a machine on which these tests run may have a GPU


@pytest.mark.parametrize(
    ("probe", "seconds", "steps"),
    [
        (0.1, 1.0, 10),
        (0.3, 1.0, 4),
        (0.9, 1.0, LEAST),
        (1.0, 1.0, 0),
        (20.0, 1.0, 0),
        (1e-9, 1.0, MOST),
        (0.1, 0.0, 0),
    ],
)
def test_the_number_of_steps_follows_from_the_time_of_the_first(probe, seconds, steps):
    assert how_many(probe, seconds) == steps


def times_of_steps(steps, seconds):
    """Returns what a timer finds for steps of these durations, and how many it let run."""
    clock = itertools.accumulate([0.0, *steps])
    now = [next(clock)]
    timer = StepTimer(CPU, seconds, clock=lambda: now[0])
    control = SimpleNamespace(should_training_stop=False)
    for number, time in enumerate(clock, start=1):
        now[0] = time
        timer.on_step_end(None, SimpleNamespace(global_step=number), control)
        if control.should_training_stop:
            break
    return timer.seconds, number


def test_a_timer_leaves_out_the_warm_up_and_takes_the_mean_of_the_others():
    # warm-up, a first timed step that decides on four more, and the mean of these
    assert times_of_steps([9.0, 0.25, 0.1, 0.2, 0.3, 0.4, 7.0], seconds=1.0) == (pytest.approx(0.25), 6)


def test_a_step_that_takes_the_whole_time_is_the_only_one():
    assert times_of_steps([9.0, 2.0, 7.0], seconds=1.0) == (pytest.approx(2.0), 2)


def sides(log, **seconds):
    def side(name, values):
        values = iter(values)

        def work():
            log.append(name)
            value = next(values)
            if isinstance(value, Exception):
                raise value
            return value

        return work

    return {name: side(name, values) for name, values in seconds.items()}


def test_sides_take_turns_and_the_highest_peak_counts():
    log = []
    both = sides(log, ours=[(1.0, 5), (1.1, 9), (1.2, 7)], theirs=[(2.0, None), (2.1, None), (2.2, None)])
    found = alternate(both, Plan(quick=False, rounds=3, seconds=1.0, budget=9.0))
    assert log == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert found == {"ours": Measured((1.0, 1.1, 1.2), 9), "theirs": Measured((2.0, 2.1, 2.2))}


def test_rounds_end_with_their_time_but_there_are_two():
    log, clock = [], itertools.count(step=10.0)
    both = sides(log, ours=[(1.0, None)] * 5, theirs=[(1.0, None)] * 5)
    alternate(both, Plan(quick=False, rounds=5, seconds=1.0, budget=9.0), clock=lambda: next(clock))
    assert len(log) == 4
    alternate(both, Plan(quick=False, rounds=3, seconds=1.0, budget=999.0), clock=lambda: next(clock))
    assert len(log) == 10


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)\nmore"), True), (TypeError("no\nbf16."), False)],
)
def test_a_side_that_fails_is_not_tried_again(error, is_memory):
    log = []
    found = alternate(sides(log, ours=[(1.0, None)] * 3, theirs=[error]), Plan(False, 3, 1.0, 9.0))
    assert log.count("theirs") == 1
    assert found["ours"].seconds == (1.0, 1.0, 1.0)
    failure = found["theirs"]
    assert (failure.seconds, failure.out_of_memory) == ((), is_memory)
    assert failure.failure.startswith(f"{type(error).__name__}: ")
    assert "\n" not in failure.failure


def test_the_time_left_follows_from_the_time_of_what_is_done():
    steps = [Workload(name, "", "", lambda: None, is_training=name != "call") for name in ("one", "two", "call")]
    clock = iter([0.0, 20.0, 44.0])
    left = TimeLeft(steps, clock=lambda: next(clock))
    assert [left.after(each) for each in steps] == [" (about 22 s left)", " (about 2 s left)", ""]


def test_a_call_is_repeated_for_the_time_and_at_least_once():
    calls = []
    assert seconds_of(lambda: calls.append(1), CPU, seconds=0.0) > 0
    assert len(calls) == 2  # the first one is a warm-up


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


def tiny_task(is_real):
    return Task(Tiny(), [{"x": torch.randn(64)} for _ in range(8)], 4)


def tiny_operation(is_real, device):
    one = torch.zeros(1, device=device)
    return Operation(lambda: one.add_(1), lambda: one.add_(1))


TINY = Workload("steps", "64 numbers", "", tiny_task, "a journal: 1 s")
SMALLER = dataclasses.replace(TINY, name="smaller steps", smaller="fewer numbers")
CALLS = Workload("calls", "adds", "", tiny_operation, is_training=False, has_own=True)


@pytest.fixture
def measured(on_cpu):
    """`measured(*workloads, plan)` measures on the CPU; returns the report and what was told."""

    def run(*workloads, plan=SHORT):
        told = []
        report = run_speed(plan, told.append, workloads)
        return report, "".join(told)

    return run


def test_a_report_of_the_cpu(measured):
    report, told = measured(TINY, SMALLER, CALLS)
    steps, smaller, calls = report.workloads
    assert (report.device, report.simulated, report.smaller, report.passed) == ("cpu", False, True, True)
    assert [len(each) for each in steps.times().values()] == [2, 2]
    assert list(steps.times()) == ["mps_trainer", "transformers"]
    assert list(calls.times()) == ["mps_trainer", "torch"]
    assert steps.estimated_bytes > 2 * 64 * 64 * 4
    assert steps.ours.peak_bytes is None  # the CPU has no such figure
    # smaller sizes are never compared with a published figure
    assert (steps.sizes, steps.published) == ("64 numbers", "a journal: 1 s")
    assert (smaller.sizes, smaller.published) == ("fewer numbers", None)
    assert {"mps_trainer", "python", "torch", "transformers"} <= report.versions.keys()
    assert told.startswith("This takes about a minute.\n[1/3] steps ... mps_trainer ")
    assert told.count(" left)\n") == 2


def test_a_simulated_device_is_named_and_stands_beside_no_published_figure(mps):
    report = run_speed(SHORT, workloads=(TINY,))
    assert (report.device, report.simulated, report.smaller) == ("mps", True, True)
    (result,) = report.workloads
    assert result.published is None
    assert result.ours.peak_bytes == pytest.approx(result.estimated_bytes, rel=0.1)
    assert any("simulated" in reason for reason in report.unjudged)


def test_real_sizes_are_computed_on_request(measured):
    report, _ = measured(SMALLER, plan=dataclasses.replace(SHORT, quick=False, rounds=1))
    assert (report.smaller, report.workloads[0].sizes, report.workloads[0].published) == (
        False,
        "64 numbers",
        "a journal: 1 s",
    )


def test_both_trainers_train_the_same_model_which_keeps_its_form(on_cpu, tmp_path):
    task = tiny_task(True)
    names, before = [name for name, _ in task.model.named_modules()], task.model.layer.weight.detach().clone()
    measurement = Measurement(task, resolve(DeviceRequest(), gather_facts()), tmp_path, 0.0)
    kinds = {name: type(measurement.trainer(name)).__module__ for name in ("mps_trainer", "transformers")}
    assert kinds == {"mps_trainer": "mps_trainer.trainer", "transformers": "transformers.trainer"}
    for name in kinds:
        weight = task.model.layer.weight.detach().clone()
        seconds, _ = measurement.measure(name)
        assert seconds > 0
        assert not torch.equal(task.model.layer.weight, weight)
    assert [name for name, _ in task.model.named_modules()] == names
    assert task.model.layer.weight.dtype is before.dtype
    assert "forward" not in vars(task.model)


def test_both_trainers_use_one_of_several_gpus(on_cpu, tmp_path, monkeypatch):
    """transformers would train batches as large as all GPUs of the machine take."""
    gpus = property(lambda self: 2 if self._n_gpu < 1 else self._n_gpu)
    monkeypatch.setattr(transformers.TrainingArguments, "n_gpu", gpus)
    measurement = Measurement(tiny_task(True), resolve(DeviceRequest(), gather_facts()), tmp_path, 0.0)
    assert measurement.trainer("transformers").args.n_gpu == 1


def test_a_workload_that_cannot_be_made_or_trained_fails_alone(measured):
    def broken(is_real):
        raise RuntimeError("MPS backend out of memory")

    class Broken(Tiny):
        def forward(self, x):
            raise TypeError("no such kernel")

    unmade = dataclasses.replace(TINY, name="unmade", make=broken)
    failing = dataclasses.replace(TINY, name="failing", make=lambda is_real: Task(Broken(), tiny_task(True).rows, 4))
    report, told = measured(unmade, failing, TINY)
    first, second, third = report.workloads
    assert (first.ours.out_of_memory, first.failed) == (True, False)
    assert (second.ours.failure, second.failed) == ("TypeError: no such kernel", True)
    assert second.estimated_bytes is None
    assert third.comparison is not None or third.unsteady
    assert not report.passed
    assert "fit failed" in told


def test_a_package_that_is_missing_skips_its_workload(measured, monkeypatch):
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    report, _ = measured(dataclasses.replace(TINY, package="peft"), TINY)
    skipped, other = report.workloads
    assert skipped.skipped.startswith("peft is not installed. Run: python -m pip install")
    assert report.passed
    assert other.ours.seconds


def test_processes_are_refused(on_cpu, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert refusal(run_speed, SHORT, kind=MisconfigurationException).startswith("2 processes were started")


def test_workloads_have_names_of_their_own_and_sources():
    names = [workload.name for workload in WORKLOADS]
    assert len(set(names)) == len(names)
    for workload in WORKLOADS:
        assert workload.published is None or ": " in workload.published
        assert workload.smaller or not workload.is_training  # training in real sizes takes minutes on a CPU


SIZES_OF_PUBLISHED_MODELS = {"LoRA": 596.05, "LoRA on a long text": 596.05, "embeddings": 22.565, "classifier": 109.48}


@pytest.mark.parametrize("name", SIZES_OF_PUBLISHED_MODELS)
def test_real_sizes_are_those_of_the_models_that_give_their_names(name):
    """Counts weights without making them. Millions, without adapters and poolers, as the models' cards have them."""
    (workload,) = (each for each in WORKLOADS if each.name == name)
    with torch.device("meta"):
        task = workload.make(True)
    base = getattr(task.model, "encoder", task.model)
    count = sum(each.numel() for key, each in base.named_parameters() if "lora_" not in key)
    assert count / 1e6 == pytest.approx(SIZES_OF_PUBLISHED_MODELS[name], rel=2e-4)


@pytest.mark.parametrize("name", [workload.name for workload in WORKLOADS])
def test_each_workload_runs_in_its_smaller_size(name, mps, tmp_path):
    """The peak that the simulated device counts is the peak that `fit` computes."""
    (workload,) = (each for each in WORKLOADS if each.name == name)
    decision = resolve(DeviceRequest(), gather_facts())
    plan = dataclasses.replace(QUICK, rounds=1, seconds=0.0)
    torch.manual_seed(0)
    result = run._measure(workload, False, plan, decision, tmp_path, lambda text: None)
    assert (result.theirs.failure, result.ours and result.ours.failure) == (None, None)
    assert result.theirs.seconds
    assert (result.ours is not None) == (workload.is_training or workload.has_own)
    if workload.is_training:
        assert result.theirs.peak_bytes > 0
        assert result.ours.peak_bytes == pytest.approx(result.estimated_bytes, rel=0.1)


def test_the_peak_of_a_run_is_its_own(mps, tmp_path):
    measurement = Measurement(tiny_task(True), resolve(DeviceRequest(), gather_facts()), tmp_path, 0.0)
    torch.zeros(10**7, device="mps")  # 40 MB, freed at once
    _, peak = measurement.measure("mps_trainer")
    assert 64 * 64 * 4 < peak < 10**6
