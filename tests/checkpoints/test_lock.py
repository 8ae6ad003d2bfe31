"""One run at a time in an output folder."""

import contextlib
import os
import signal

import pytest

from mps_trainer.checkpoints.output_folder import only_run_in
from tests.conftest import refusal


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


def test_a_run_keeps_others_out_until_it_is_killed_though_its_worker_lives_on(tmp_path, caplog):
    caplog.set_level("INFO", "mps_trainer")
    ready, tell = os.pipe()
    pid = forked(lambda: hold(tmp_path, lambda: os.write(tell, b"%d\n" % forked(signal.pause))), ready)
    os.close(tell)
    worker = int(os.read(ready, 20))  # nothing if it ended without the lock
    try:
        said = refusal(only_run_in(str(tmp_path)).__enter__)
        assert f"Another run, process {pid} on " in said
        assert "give output_dir another folder" in said
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert os.listdir(tmp_path) == [".mps_trainer.lock"]
        with only_run_in(str(tmp_path)):
            os.kill(worker, 0)  # it lives
            assert f"process {pid} on " in caplog.text
        assert os.listdir(tmp_path) == []
    finally:
        for each in (pid, worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def test_a_folder_that_cannot_be_written_to_has_no_lock(tmp_path):
    with only_run_in(str(tmp_path / "missing")):
        pass


def test_an_interrupt_while_a_run_ends_does_not_keep_the_folder(tmp_path, monkeypatch):
    def interrupted(descriptor):
        monkeypatch.undo()
        os.close(descriptor)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), only_run_in(str(tmp_path)):
        monkeypatch.setattr(os, "close", interrupted)
    with only_run_in(str(tmp_path)):
        pass
