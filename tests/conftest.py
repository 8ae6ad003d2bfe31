"""Fixtures that several areas share: small models, small data, and a Trainer made from both."""

import contextlib
import functools
import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads of several test processes that spin while they wait take minutes instead of seconds. The order of sums, which
# some tests compare with another library's to the last digits, depends on the number of threads, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from mps_trainer.simulator import SimulatedMPS, SimulatorUnavailableError, simulated_mps  # before torch: hides CUDA

# isort: split

import hypothesis
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from mps_trainer import MisconfigurationException, Trainer, TrainingArguments
from mps_trainer.tools.simulator.build import build_device
from tests.tiers import TierRules


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TierRules())
    # A shell that runs the tests in the background has them ignore SIGINT, unlike a terminal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests save more than a thousand checkpoints, and no test loses power: on a busy disk a flush takes 7 ms.
    os.fsync = lambda fd: None
    # On a busy machine an example may take longer than hypothesis's limit of 200 ms.
    hypothesis.settings.register_profile("without deadline", deadline=None)
    hypothesis.settings.load_profile("without deadline")


def pytest_collection_finish() -> None:
    """Exempts all imported modules from garbage collection.

    Each run of transformers' Trainer begins with a collection, which would take longer than most tests do.
    """
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test marked every_device on the CPU and on the simulated mps device."""
    if metafunc.definition.get_closest_marker("every_device") is not None:
        metafunc.fixturenames.insert(0, "device")
        metafunc.parametrize("device", ["cpu", "mps"], indirect=True)


@contextlib.contextmanager
def on_device(name: str, **settings: object) -> Iterator[SimulatedMPS | None]:
    """Simulates an mps device with `settings` if `name` is "mps", or skips the test where it cannot."""
    if name == "cpu":
        yield None
        return
    if "memory" in settings:
        gc.collect()  # tensors of other tests would count
    with contextlib.ExitStack() as stack:
        try:
            mps = stack.enter_context(simulated_mps(**settings))
        except SimulatorUnavailableError as error:
            pytest.skip(str(error))
        yield mps


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Returns the device that `make_args` trains on: the CPU, and for a test marked every_device also mps.

    `every_device(same_draws_as_cpu=True)` lets the device draw the CPU's random numbers, for comparison with it.
    """
    name = getattr(request, "param", "cpu")
    marker = request.node.get_closest_marker("every_device")
    with on_device(name, **(marker.kwargs if marker else {})):
        yield name


@pytest.fixture(scope="session")
def built() -> None:
    """Skips tests that need the simulated device where it cannot be compiled."""
    with on_device("mps"):
        pass


@pytest.fixture(scope="session")
def devices() -> tuple[str, ...]:
    """Returns the CPU, and the simulated device where it can be built: `.ci/run` fails before if it cannot."""
    try:
        build_device()
    except SimulatorUnavailableError:
        return ("cpu",)
    return "cpu", "mps"


@pytest.fixture
def mps() -> Iterator[SimulatedMPS | None]:
    """Returns the simulated device, which counts operators, copies and waits."""
    with on_device("mps") as simulated:
        yield simulated


class Classifier(nn.Module):
    """A classifier of four numbers with dropout, so that a run depends on the random numbers it draws."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.dropout(self.norm(torch.tanh(self.hidden(x)))))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def examples(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Returns points in four dimensions. The label says whether their sum is positive."""
    points = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), device="cpu")
    return [{"x": point, "labels": int(point.sum() > 0)} for point in points]


def callback(**events: Callable) -> TrainerCallback:
    """Returns a callback that calls functions at events, as in `callback(on_log=lambda state, **_: print(state))`."""
    made = TrainerCallback()
    for name, work in events.items():
        setattr(made, name, functools.partial(_call, work))
    return made


def _call(work: Callable, args, state, control, **given) -> None:
    work(args=args, state=state, control=control, **given)


class Stream(IterableDataset):
    """Gives rows one after the other, and has no length."""

    def __init__(self, rows: Iterable) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator:
        return iter(self.rows)


def accuracy(prediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def refusal(work: Callable, *given, kind: type[Exception] = MisconfigurationException, **settings) -> str:
    """Returns the line with which `work(*given, **settings)` is refused."""
    with pytest.raises(kind) as refused:
        work(*given, **settings)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def messages_with(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Returns the messages in the log that contain `text`."""
    return [message for message in caplog.messages if text in message]


@pytest.fixture
def make_model():
    def make(dropout: float = 0.1) -> Classifier:
        torch.manual_seed(0)
        return Classifier(dropout)

    return make


@pytest.fixture
def make_args(tmp_path, request):
    """`make_args(**settings)` returns quiet arguments for a run into a folder of the test.

    The run is on the CPU, or on the simulated device in a test that has one.
    """
    on_mps = "mps" in request.fixturenames or request.getfixturevalue("device") == "mps"

    def make(**settings: object) -> TrainingArguments:
        defaults = {"output_dir": str(tmp_path / "run"), "use_cpu": not on_mps, "disable_tqdm": True, "report": False}
        return TrainingArguments(**{**defaults, "logging_steps": 1, "save_strategy": "no", **settings})

    return make


@pytest.fixture
def make_trainer(make_args, make_model):
    """`make_trainer(trainer, **settings)` returns a Trainer of the small classifier on 40 examples.

    `trainer` has arguments of the Trainer, and `settings` fields of its TrainingArguments.
    """

    def make(trainer: dict | None = None, **settings: object) -> Trainer:
        given = {"train_dataset": examples(40), "eval_dataset": examples(24, seed=1), **(trainer or {})}
        if "model_init" not in given:
            given.setdefault("model", make_model())
        kind = given.pop("kind", Trainer)
        return kind(args=make_args(**settings), **given)

    return make


@pytest.fixture
def trained(make_trainer):
    """`trained(trainer, resume, **settings)` returns a Trainer, made as by `make_trainer`, that has trained."""

    def train(trainer: dict | None = None, resume: object = None, **settings: object) -> Trainer:
        made = make_trainer(trainer, **settings)
        made.train(resume_from_checkpoint=str(resume) if isinstance(resume, Path) else resume)
        return made

    return train


# Names with these words are measured, and differ from run to run.
TIMES = ("runtime", "per_second", "preparation_time", "step_time")


def without_times(history: list[dict]) -> list[dict]:
    return [
        {name: value for name, value in entry.items() if not any(word in name for word in TIMES)} for entry in history
    ]


@pytest.fixture
def assert_resumes(make_trainer, trained, tmp_path):
    """`assert_resumes(step, parts, **settings)` asserts that a run resumed at a step equals the uninterrupted one.

    `parts()` returns the arguments of a Trainer. Returns the Trainer that was resumed.
    """

    def check(step: int, parts: Callable[[], dict] = dict, **settings: object) -> Trainer:
        whole = trained(parts(), output_dir=str(tmp_path / "whole"), **settings)
        resumed = make_trainer(parts(), output_dir=str(tmp_path / "resumed"), **settings)
        for parameter in resumed.model.parameters():
            nn.init.ones_(parameter)
        torch.manual_seed(99)  # whatever happened before
        np.random.seed(99)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert_same_weights(weights(whole.model), weights(resumed.model))
        assert without_times(whole.state.log_history) == without_times(resumed.state.log_history)
        assert resumed.state.global_step == whole.state.global_step > step
        return resumed

    return check


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def assert_same_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different


def logged(trainer: Trainer, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]
