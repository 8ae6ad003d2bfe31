"""Work beside the training: one piece at a time, whose errors are raised where it is asked after."""

import threading

import pytest

from mps_trainer.checkpoints.checkpoints import Background


def test_what_work_raises_is_raised_once_when_it_is_waited_for():
    background = Background()

    def work():
        raise KeyError("a fault of the program")

    background.start(work)
    with pytest.raises(KeyError, match="a fault of the program"):
        background.wait()
    background.wait()
    background.poll()


def test_the_next_work_begins_when_the_one_before_has_ended():
    background, done, begun, go_on = Background(), [], threading.Event(), threading.Event()

    def first():
        begun.set()
        go_on.wait()
        done.append("first")

    background.start(first)
    begun.wait()
    background.poll()  # does not wait for it
    assert done == []
    threading.Timer(0.05, go_on.set).start()
    background.start(lambda: done.append("second"))
    background.wait()
    assert done == ["first", "second"]


def test_polling_raises_what_work_that_has_ended_raised():
    background = Background()

    def work():
        raise ValueError("not written")

    background.start(work)
    Background.wait_for_all()
    with pytest.raises(ValueError, match="not written"):
        background.poll()


def test_another_run_of_the_process_waits_for_what_is_still_being_written_and_for_nothing_else():
    background, done = Background(), []
    go_on = threading.Event()
    background.start(lambda: (go_on.wait(), done.append("written")))
    threading.Timer(0.05, go_on.set).start()
    Background.wait_for_all()
    assert done == ["written"]
    background.start(lambda: None)
    background.wait()


def test_work_does_not_keep_the_process_alive():
    background, daemon = Background(), []
    background.start(lambda: daemon.append(threading.current_thread().daemon))
    background.wait()
    assert daemon == [True]
