"""One run at a time in an output folder."""

import contextlib
import os
import signal

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints.output_folder import only_run_in


def forked(work, *unused: int) -> int:
    """The id of a process that does `work` and ends, whatever comes of it; it closes what is `unused` there."""
    if (pid := os.fork()) == 0:
        try:
            for descriptor in unused:
                os.close(descriptor)
            work()
        finally:
            os._exit(1)
    return pid


def hold(folder, tell) -> None:
    with only_run_in(str(folder)):
        tell()
        signal.pause()


@contextlib.contextmanager
def held_by_another_process(folder):
    """A process that holds the lock of `folder`; its number."""
    ready, tell = os.pipe()
    pid = forked(lambda: hold(folder, lambda: os.write(tell, b"1")), ready)
    os.close(tell)
    assert os.read(ready, 1) == b"1"  # nothing if it ended without the lock
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_second_run_is_kept_out_of_the_folder_of_a_live_one(tmp_path):
    with held_by_another_process(tmp_path) as pid, pytest.raises(MisconfigurationException) as refused:
        only_run_in(str(tmp_path)).__enter__()
    assert f"Another run, process {pid} on " in str(refused.value)
    assert "give output_dir another folder" in str(refused.value)


def test_the_lock_of_a_killed_run_is_taken_over(tmp_path, caplog):
    caplog.set_level("INFO", "mps_trainer")
    with held_by_another_process(tmp_path) as pid:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert os.listdir(tmp_path) == [".mps_trainer.lock"]
        with only_run_in(str(tmp_path)):
            assert f"process {pid} on " in caplog.text
    assert os.listdir(tmp_path) == []


def test_workers_that_outlive_a_killed_run_do_not_hold_its_lock(tmp_path):
    ready, tell = os.pipe()
    pid = forked(lambda: hold(tmp_path, lambda: os.write(tell, b"%d\n" % forked(signal.pause))), ready)
    os.close(tell)
    worker = int(os.read(ready, 20))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        with only_run_in(str(tmp_path)):
            os.kill(worker, 0)  # it lives
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_folder_that_cannot_be_written_to_has_no_lock(tmp_path):
    with only_run_in(str(tmp_path / "missing")):
        pass
