"""Running out of memory ends in an error that says what held how much and what would help."""

import gc
import re

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from mps_trainer import MisconfigurationException, Trainer
from mps_trainer.errors import with_causes
from mps_trainer.guards.memory import MemoryTable, measure
from mps_trainer.guards.memory_errors import DeviceOutOfMemoryError
from tests.conftest import Classifier, accuracy, examples, logged, messages_with, on_device, refusal
from tests.tiny import tiny


@pytest.fixture
def small(request):
    """A simulated device whose memory is `request.param`."""
    with on_device("mps", memory=request.param) as device:
        yield device


def bert(**settings):
    sizes = {"vocab_size": 100, "hidden_size": 64, "max_position_embeddings": 512}
    return tiny("BertForSequenceClassification", **{**sizes, **settings})


def rows(length=128, count=64):
    return [{"input_ids": torch.full((length,), 7), "labels": i % 2} for i in range(count)]


@pytest.fixture
def ends(make_trainer):
    """Trains until memory runs out, and gives the error."""

    def run(model, data, **settings):
        given = {"model": model, "train_dataset": data, "eval_dataset": None}
        with pytest.raises(DeviceOutOfMemoryError) as caught:
            make_trainer(given, **{"use_cpu": False, "max_steps": 3, **settings}).train()
        return caught.value

    return run


@pytest.mark.parametrize("small", ["24MB"], indirect=True)
def test_too_large_a_batch_is_to_be_made_smaller(small, ends):
    error = ends(bert(), rows(), per_device_train_batch_size=64, gradient_accumulation_steps=3)
    assert isinstance(error, MisconfigurationException)
    assert isinstance(error, torch.OutOfMemoryError)  # so it is a RuntimeError
    message = str(error)
    assert message.startswith("mps ran out of memory in training in step 1. Held: tensors ")
    assert "\n" not in message
    assert re.search(r"recommended maximum 24\.0 MiB, limit 24\.00 MiB; \S+ \w+ more were asked for", message)
    assert "(1) auto_find_batch_size=True, or per_device_train_batch_size=32 with gradient_acc" in message
    assert "accumulation_steps=6, which is the same update" in message
    assert [remedy.partition("=")[0] for remedy in error.remedies[1:]] == ["gradient_checkpointing", "bf16"]
    memory = error.memory
    assert memory.activations > 10 * memory.model > 0
    assert memory.live <= memory.recommended == 24 * 2**20
    assert memory.optimizer == memory.gradients == 0


@pytest.mark.parametrize("small", ["24MB"], indirect=True)
@pytest.mark.parametrize("halves", [False, True], ids=["", "auto_find_batch_size"])
def test_an_error_that_is_kept_does_not_keep_activations(small, ends, halves):
    """A notebook keeps the traceback of the last error, and the next cell needs the memory."""
    length, size = (4096, 1) if halves else (128, 64)
    model = bert(hidden_size=256 if halves else 64, max_position_embeddings=4096)
    error = ends(model, rows(length), per_device_train_batch_size=size, auto_find_batch_size=halves)
    after = measure(torch.device("mps"), model, None)
    assert error.memory.activations > 2**22 > after.activations
    assert ("cannot split" in str(error)) == halves


def test_an_error_may_be_its_own_cause():
    error = ValueError()
    error.__cause__ = error
    assert with_causes(error) == [error]


@pytest.mark.parametrize("small", ["64MB"], indirect=True)
def test_a_run_does_not_share_memory_with_a_deleted_trainer(small, make_trainer):
    """A notebook's cell that makes model and Trainer runs twice."""
    gc.disable()
    try:
        for _ in range(2):
            trainer = make_trainer(
                {"model": bert(hidden_size=256), "train_dataset": rows()}, use_cpu=False, max_steps=1
            )
            trainer.train()
            assert sum(type(each) is type(trainer.model) for each in gc.get_objects()) == 1
    finally:
        gc.enable()


@pytest.mark.parametrize("small", ["6MB"], indirect=True)
def test_remedies_that_are_in_use_are_not_named_again(small, ends):
    settings = {"auto_find_batch_size": True, "activation_checkpointing": True, "bf16": True}
    error = ends(bert(hidden_size=256), rows(512, 8), **settings)
    assert "auto_find_batch_size cannot split the batch: it has one example" in str(error)
    assert len(error.remedies) == 3
    assert not any(remedy.startswith(tuple(settings)) for remedy in error.remedies)


@pytest.mark.parametrize("small", ["12MB"], indirect=True)
def test_an_optimizer_that_takes_too_much_is_named_first(small, ends):
    model = Classifier()
    model.hidden = nn.Sequential(nn.Linear(4, 2**18), nn.MaxPool1d(2**15))  # 5 MiB, and as much in gradients
    error = ends(model, examples(4), per_device_train_batch_size=1)
    assert "adapters" in error.remedies[0]
    assert error.remedies[1].startswith("optim='adafactor'")
    assert error.memory.gradients == error.memory.model


@pytest.mark.parametrize("small", ["1MB"], indirect=True)
def test_a_model_that_does_not_fit(small, make_trainer):
    too_large = {"model": bert(vocab_size=10**4)}
    said = refusal(make_trainer, too_large, kind=DeviceOutOfMemoryError, use_cpu=False)
    assert re.search(r"in placing the model\. .*\(1\) take a smaller model", said)


class Scores(nn.Module):
    """Memory by the row: 64 KiB in evaluation; in training next to nothing."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x, labels=None):
        logits = self.line(x)
        if not self.training:
            logits = logits + (x[:, :1] * torch.ones(1, 2**14, device=x.device)).mean() * 0
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("small", ["1MB"], indirect=True)
def test_an_evaluation_that_does_not_fit(small, make_trainer):
    trainer = make_trainer(
        {"model": Scores(), "compute_metrics": accuracy}, use_cpu=False, per_device_eval_batch_size=16
    )
    for evaluate in (trainer.evaluate, lambda: trainer.predict(examples(24))):
        said = refusal(evaluate, kind=DeviceOutOfMemoryError)
        assert "(1) per_device_eval_batch_size=8; (2) eval_acc" in said


@pytest.mark.parametrize("small", ["1MB"], indirect=True)
def test_an_evaluation_in_a_run_goes_on_with_half_the_batch(small, make_trainer, caplog):
    made = []
    for size in (16, 4):
        torch.manual_seed(0)
        trainer = make_trainer(
            {"model": Scores(), "compute_metrics": accuracy},
            **{"use_cpu": False, "per_device_eval_batch_size": size, "auto_find_batch_size": True},
            **{"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4},
        )
        trainer.train()
        made.append(trainer)
    first, second = made
    assert first.args.per_device_eval_batch_size < 16
    assert len(messages_with(caplog, "Memory ran out in an evaluation")) == 1
    for name in ("loss", "eval_accuracy"):
        assert logged(first, name) == logged(second, name)
    assert logged(first, "eval_loss") == pytest.approx(logged(second, "eval_loss"), abs=1e-6)


@pytest.mark.parametrize("small", ["1MB"], indirect=True)
def test_an_evaluation_with_half_the_batch_does_not_use_the_kept_loader(small, make_trainer):
    class Keeps(Trainer):
        def get_eval_dataloader(self, eval_dataset=None):
            if "eval" not in self._eval_dataloaders:
                super().get_eval_dataloader(eval_dataset)
            return self._eval_dataloaders["eval"]

    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    given = {"model": Scores(), "kind": Keeps}
    trainer = make_trainer(given, use_cpu=False, per_device_eval_batch_size=16, auto_find_batch_size=True, **workers)
    trainer.evaluate()
    assert trainer.get_eval_dataloader().batch_size == trainer.args.per_device_eval_batch_size < 16


class Fails(Classifier):
    """Raises an error in the third step."""

    calls, error = 0, "DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"

    def forward(self, x, labels=None):
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError(self.error)
        return super().forward(x, labels)


def test_the_error_describes_the_run_at_the_time_of_the_error(ends):
    error = ends(Fails(), examples(40), use_cpu=True)
    assert "in training in step 3." in str(error)
    assert error.memory.optimizer > error.memory.model > 0


def test_tensor_larger_than_a_metal_buffer_is_too_little_memory(ends, make_trainer):
    model = Fails()
    model.error = "Invalid buffer size: 9.00 GiB"
    assert "; 9.00 GiB more were asked for. What to do: " in str(ends(model, examples(40), use_cpu=True))
    model.calls = 0
    make_trainer({"model": model}, auto_find_batch_size=True).train()
    assert model.calls > 3


def test_other_errors_are_left_alone(make_trainer):
    model = Fails()
    model.error = "shapes do not fit"
    trainer = make_trainer({"model": model}, auto_find_batch_size=True)
    assert refusal(trainer.train, kind=RuntimeError) == "shapes do not fit"


def test_memory_is_measured_from_the_tensors(mps, make_trainer):
    trainer = make_trainer({"model": Classifier(0.0)}, max_steps=1)
    trainer.train()
    trained = sum(p.numel() * 4 for p in trainer.model.parameters())
    trainer.model(x=torch.ones(2, 4, device="mps"))["logits"].sum().backward()
    table = measure(trainer.args.device, trainer.model, trainer.optimizer)
    assert table.model == table.gradients == trained
    assert 2 * trained <= table.optimizer <= 2 * trained + 8 * len(list(trainer.model.parameters()))
    assert table.activations == table.live - table.model - table.gradients - table.optimizer
    tied = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    tied[1].weight = tied[0].weight
    assert measure(torch.device("cpu"), tied) == MemoryTable("cpu", model=64)
    tied[1] = nn.LazyLinear(4)  # has no size yet
    tied.scaled = nn.Parameter(TwoTensor(torch.ones(4), torch.ones(4)))  # has no memory but that of its parts
    assert measure(torch.device("cpu"), tied) == MemoryTable("cpu", model=64 + 32)
