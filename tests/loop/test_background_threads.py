"""No background thread of this package uses mps: two threads that do so end the process (pytorch issue 197805)."""

import contextlib
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mps_trainer.checkpoints import checkpoints, writers
from tests.model.test_chunked_attention_in_training import llama, texts

# It only compares two numbers of a Metal event, and touches no command buffer.
HARMLESS = {"_mps_queryEvent"}


class Uses(TorchDispatchMode):
    """Records the operators of a thread that read or write tensors on mps."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor)]
        if any(each.device.type == "mps" for each in tensors):
            self.found.append(str(func))
        return result


@contextlib.contextmanager
def threads_watched():
    """Yields what threads that are started inside do on mps, and their names."""
    found: list[str] = []
    names: list[str] = []
    plain, main = threading.Thread.run, threading.current_thread()

    def run(thread):
        names.append(thread.name)
        with Uses(found):
            plain(thread)

    def watched(name, function):
        def call(*args, **kwargs):
            if threading.current_thread() is not main and name not in HARMLESS:
                found.append(name)
            return function(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(threading.Thread, "run", run))
        for name in filter(lambda each: each.startswith("_mps_"), dir(torch._C)):
            stack.enter_context(mock.patch.object(torch._C, name, watched(name, getattr(torch._C, name))))
        yield found, names


RUNS = {
    "in one process": {},
    "prefetched by workers": {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 2},
    "groups by length": {"train_sampling_strategy": "bucket_by_length"},
    "accumulated in 16 bits": {"optim": "adamw_torch_fused", "bf16": True, "gradient_accumulation_steps": 2},
}


@pytest.fixture
def train(mps, trained):
    def run(**settings):
        data = texts(count=24, padding=True)
        parts = {"model": llama(), "train_dataset": data, "eval_dataset": data[:8]}
        saving = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 2}
        return trained(parts, max_steps=4, logging_steps=1, use_cpu=False, **saving, **settings)

    return run


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_saves_in_the_background(train, name):
    with threads_watched() as (found, names):
        trainer = train(**RUNS[name])
    assert trainer.args.device.type == "mps"
    assert names.count(checkpoints._THREAD) == 4
    assert found == []


def test_a_writer_without_a_copy_is_found(train, monkeypatch):
    monkeypatch.setattr(writers, "on_host", lambda data: data)
    with threads_watched() as (found, _):
        train()
    assert any("copy" in name for name in found)


def test_a_thread_that_waits_for_the_device_is_found(mps):
    with threads_watched() as (found, _):
        thread = threading.Thread(target=torch.mps.synchronize)
        thread.start()
        thread.join()
    assert found == ["_mps_deviceSynchronize"]


@pytest.fixture
def collectives():
    """Returns a process group of one process over an engine that gives back what it gets."""
    pytest.importorskip("mlx.core", reason="MLX is not installed: the extra several-macs")
    from mps_trainer.distributed import mlx

    class Alone(mlx.Engine):
        def run(self, operation, tensor):
            time.sleep(0.01)  # so that the thread that started it goes on first
            return tensor.clone()

    def make():
        engine = Alone(SimpleNamespace(size=lambda: 1), [], 60.0)
        return mlx.MLXProcessGroup(0, 1, engine), engine

    return make


def exchange(group, engine):
    tensors = [torch.ones(4096, device="mps")]
    for work in (group.allreduce(tensors), group.allgather([tensors], tensors), group.barrier()):
        work.wait()
    engine.close()


@pytest.mark.extra
def test_collectives_over_mlx(mps, collectives):
    with threads_watched() as (found, names):
        exchange(*collectives())
    assert "mlx" in names
    assert found == []


@pytest.mark.extra
def test_an_engine_that_copies_back_itself_is_found(mps, collectives):
    from mps_trainer.distributed import mlx

    plain = mlx._Work.end_run

    def end_run(work, error):
        work._copy_back and work._copy_back()
        plain(work, error)

    with threads_watched() as (found, _), mock.patch.object(mlx._Work, "end_run", end_run):
        exchange(*collectives())
    assert any("copy" in name for name in found)
