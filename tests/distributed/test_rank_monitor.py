"""Processes that do not come are named by those that waited for them."""

import re
import socket
import threading
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from mps_trainer import Trainer
from mps_trainer.distributed import Processes, absent_named, first, rank_monitor
from mps_trainer.distributed.rank_monitor import RankMonitor
from mps_trainer.errors import AnotherProcessFailedError, DifferentExchangesError, explanation_of
from mps_trainer.loop.run import TrainingRun
from tests.distributed import differing

LOST = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv"


def test_one_that_hangs_and_one_that_is_stopped_are_named_with_where_they_are(told_by):
    pids = [f"pid {pid} on {socket.gethostname()}" for pid in told_by(differing.HANG, ".pid")]
    (said,) = told_by(differing.HANG)
    assert "\n" not in said
    script = re.escape(differing.__file__)
    assert re.search(rf"did not come to step 4: process 1 \({pids[1]}\): it is in hang \({script}, line \d+\);", said)
    assert f"process 2 ({pids[2]}): it does not answer" in said


@pytest.fixture
def together(monkeypatch):
    """`together(3)`: three monitors that share a store as processes do; all have this process's main thread."""
    monkeypatch.setattr(rank_monitor, "EVERY", 0.02)
    monkeypatch.setattr(rank_monitor, "PATIENCE", 0.5)
    begun = []

    def make(size: int) -> list[RankMonitor]:
        store = dist.HashStore()
        names = [f"process {rank} (pid {rank} on mac{rank})" for rank in range(size)]
        begun.extend(RankMonitor(store, rank, names, "process 0") for rank in range(size))
        return begun

    yield make
    for each in reversed(begun):
        each.end()
        assert not each._thread.is_alive()


@pytest.fixture
def explained_by(monkeypatch):
    """Returns the explanation that a process adds to an error in its step 4."""

    def told(own: RankMonitor, error: Exception) -> str | None:
        monkeypatch.setattr(rank_monitor, "_own", own)
        with pytest.raises(type(error)) as raised, absent_named(lambda: "step 4"):
            raise error
        return explanation_of(raised.value)

    return told


def test_a_process_that_has_ended_is_named_and_those_that_wait_are_not(together, explained_by):
    first, second, third = together(3)
    third._waits_for = "a log"
    second.end()
    said = explained_by(first, RuntimeError(LOST))
    assert said.startswith("Of 3 processes, these did not come to step 4: process 1 (pid")
    assert "it has ended" in said
    assert "process 0" not in said
    assert "process 2" not in said


def test_after_a_failed_backward_pass_a_process_that_works_is_named_with_its_line(together, explained_by):
    own, _ = together(2)
    said = explained_by(own, RuntimeError("Application timeout caused pair closure"))
    assert re.search(r"process 1 \(pid .*\): it is in \w+ \(\S+\.py, line \d+\)\.", said)
    torchs = "Got the following error when running the callback: RuntimeError: [mlx] Late.\n\nAt:\n  mlx.py(9): _value"
    assert explained_by(own, RuntimeError(torchs)).endswith(" ([mlx] Late.)")


def test_the_purposes_are_methods_of_the_trainer_and_its_loop():
    for name in rank_monitor._PURPOSES:
        assert any(callable(getattr(each, name, None)) for each in (Trainer, TrainingRun)), f"{name} was renamed"


def test_numbers_of_different_places_are_refused_at_once(monkeypatch):
    """gloo adds what comes in the same order, whatever it means."""
    others: list[torch.Tensor] = []

    def all_reduce(tensor, operation, group, async_op):
        own = tensor.clone()
        tensor += others.pop() if others else own
        others.append(own)
        return mock.Mock()

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    two = Processes(0, 2)
    two.group = None
    assert [two.sum([float(number), 1.0]) for number in (1, 2)] == [[2.0, 2.0], [3.0, 2.0]]
    with pytest.raises(DifferentExchangesError, match=r"test_rank_monitor\.py, line \d+, and another process"):
        two.sum([0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("case", "second"),
    [
        ("stop", "the end of an epoch"),
        ("save", "a checkpoint"),
        ("evaluate", "an evaluation"),
        ("data", "the end of an epoch"),
        ("accumulation", "the end of an epoch"),
    ],
)
def test_processes_that_do_not_do_the_same_are_told_what_each_waits_for(told_by, case, second):
    told = told_by(case)
    assert len(told) == 2
    for said in told:
        assert "processes wait for different things" in said
        assert re.search(r"process 0 \(pid .*\) for the loss and gradients of a batch in .*; process 1 \(pid", said)
        assert f") for {second} in " in said
        assert "network" not in said


def test_a_process_that_stops_asking_when_the_store_closes_has_not_ended(together):
    first, second, _ = together(3)
    first.end()
    second._thread.join(5)
    assert not second._thread.is_alive()
    assert second.store.check(["gone/0"])
    assert not second.store.check(["gone/1"])


def test_the_wait_for_the_first_process_to_tokenize_is_named(together, monkeypatch):
    monkeypatch.setattr(rank_monitor, "_own", together(2)[1])
    monkeypatch.setattr(dist, "barrier", mock.Mock(side_effect=RuntimeError(LOST)))
    with pytest.raises(RuntimeError) as raised, first(False, "tokenizing"):
        pass
    assert "did not come to the barrier at tokenizing: process 0 (pid" in explanation_of(raised.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes cannot be multiplied"),
        KeyError("loss"),
        OSError("gloo/"),
        dist.DistBackendError("NCCL error: Duplicate GPU detected: rank 0 and rank 1 both on CUDA device 1000"),
        AnotherProcessFailedError("Process 0 has failed: ConnectionError: Connection reset by peer"),
    ],
)
def test_what_is_no_failed_exchange_asks_nobody(together, explained_by, error):
    assert explained_by(together(2)[0], error) is None


def test_a_store_that_does_not_answer_keeps_nobody_waiting(together, explained_by, monkeypatch):
    first = together(2)[0]
    monkeypatch.setattr(first, "_ask", lambda: time.sleep(20))
    begun = time.monotonic()
    said = explained_by(first, dist.DistNetworkError("Connection reset by peer"))
    assert re.search(r"and process 0 \(pid \d+ on .*\), which keeps the list of processes, does not answer", said)
    assert time.monotonic() - begun < 10


def test_a_process_that_is_lost_before_it_wrote_its_name_keeps_nobody_waiting_and_is_named(monkeypatch, explained_by):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # a get waits for five minutes
    monkeypatch.setattr(rank_monitor, "EVERY", 0.02)
    monkeypatch.setattr(rank_monitor, "PATIENCE", 0.2)
    monkeypatch.setattr(rank_monitor, "_own", None)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    attending = threading.Thread(target=rank_monitor.attend, args=(0, 2, 0), daemon=True)
    attending.start()
    attending.join(10)
    assert not attending.is_alive()
    said = explained_by(rank_monitor._own, RuntimeError(LOST))
    assert "these did not come to step 4: process 1: it does not answer" in said
    rank_monitor.leave()
