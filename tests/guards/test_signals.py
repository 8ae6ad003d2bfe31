"""A SignalHandler notes the first signal and ends at the second; the command to resume is printed."""

import gc
import os
import signal
import sys
import threading
import weakref
from unittest import mock

import pytest
from tqdm import tqdm

from mps_trainer.distributed import Processes
from mps_trainer.guards.signals import SignalHandler, how_to_go_on
from tests.conftest import refusal


@pytest.fixture(autouse=True)
def default_handlers():
    """Sets the handlers of a process in a terminal. In the background, a shell makes a process ignore SIGINT."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_noted_and_told(signum, capfd):
    with SignalHandler() as stop:
        assert stop.signum is None
        os.kill(os.getpid(), signum)
        assert stop.signum == signum
    assert f"{signum.name}: finishing the step and saving a checkpoint." in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    # A launcher sends SIGTERM to those that are left when one has died, with which they cannot save.
    with SignalHandler(processes=Processes(0, 2)) as stop:
        os.kill(os.getpid(), signum)
        assert stop.signum is None  # until all have agreed
    said = capfd.readouterr().err
    assert f"{signum.name}: finishing the step and saving a checkpoint if the other processes still run." in said


def test_a_second_signal_ends_at_once():
    with SignalHandler() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    pid = os.fork()
    if pid == 0:
        with SignalHandler():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("signum", "error", "said"),
    [
        (signal.SIGTERM, SystemExit, "143"),
        (signal.SIGHUP, SystemExit, "129"),
        (signal.SIGINT, KeyboardInterrupt, "saved here"),
    ],
)
def test_a_run_ends_as_its_signal_would_end_it_with_a_line_that_continues_no_bar(signum, error, said, capsys):
    stop = SignalHandler()
    stop.signum = signum
    with tqdm(total=2):
        assert refusal(stop.end, "saved here", kind=error) == said
    assert ("\rsaved here\n" in capsys.readouterr().err) == (error is SystemExit)


@pytest.mark.parametrize(("rank", "line"), [(0, "saved here\n"), (1, "")])
def test_an_interrupt_of_several_processes_prints_one_line(rank, line, capsys, monkeypatch):
    others = mock.Mock()
    monkeypatch.setattr(sys, "excepthook", others)
    stop = SignalHandler(processes=Processes(rank, 2))
    stop.signum = signal.SIGINT
    with pytest.raises(KeyboardInterrupt) as ended:
        stop.end("saved here")
    sys.excepthook(ended.type, ended.value, ended.tb)
    assert capsys.readouterr().err == line
    others.assert_not_called()
    sys.excepthook(ValueError, another := ValueError("wrong"), None)
    others.assert_called_once_with(ValueError, another, None)
    run = weakref.ref(stop)
    del stop, ended
    gc.collect()
    assert run() is None  # a script that catches it does not keep the model in memory


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, lambda signum, frame: None])
def test_a_handler_of_somebody_elses_stays(theirs):
    signal.signal(signal.SIGINT, theirs)
    with SignalHandler():
        assert signal.getsignal(signal.SIGINT) is theirs
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        signal.signal(signal.SIGTERM, theirs)  # put in place meanwhile
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is theirs


def test_nothing_changes_where_it_is_not_wanted_or_cannot_be():
    found = []

    def look(wanted=True):
        with SignalHandler(wanted):
            found.append(signal.getsignal(signal.SIGINT))

    look(wanted=False)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler] * 2


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 7), (signal.SIGHUP, 7), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_forked_worker_ends_by_sigterm_only(signum, status, capfd):
    with SignalHandler() as stop:
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signum)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status
        assert stop.signum is None
    assert capfd.readouterr().err == ""


RESUME = "--resume_from_checkpoint out/checkpoint-5"


@pytest.mark.parametrize(
    ("argv", "way_on"),
    [
        ([""], "trainer.train(resume_from_checkpoint='out/checkpoint-5')"),
        (
            ["my train.py", "--output_dir", "out", "--overwrite_output_dir", "--lr=1"],
            f"python3 'my train.py' --output_dir out --lr=1 {RESUME}",
        ),
        (["a.py", *RESUME.replace("5", "2").split(), "--output_dir=out"], f"python3 a.py --output_dir=out {RESUME}"),
        (["a.py", "--resume_from_checkpoint=True", "--output_dir=out"], f"python3 a.py --output_dir=out {RESUME}"),
        (
            ["a.py", "--overwrite_output_dir", "True", "--resume-from-checkpoint", "x", "--output-dir", "out"],
            f"python3 a.py --output-dir out {RESUME}",
        ),
    ],
)
def test_the_way_on_is_what_to_type(argv, way_on):
    assert how_to_go_on("out/checkpoint-5", argv, ["python3"]) == way_on
