"""Tests the decision to start a run again, from the facts alone."""

import dataclasses

import pytest

from mps_trainer.launching.restarts import (
    GPU,
    MEMORY,
    OTHER,
    VARIABLE,
    End,
    Progress,
    Restart,
    Supervision,
    announcement,
    decide,
)

AT_5 = Progress("/out", step=5, examples=8)
AT_0 = dataclasses.replace(AT_5, step=0)
TRAINED = dataclasses.replace(AT_5, in_training=False)
KILLED = "was killed (SIGKILL, which a system short of memory sends)"


@pytest.mark.parametrize(
    ("end", "cause", "examples"),
    [
        (End(-9, "", AT_5), KILLED, 4),
        (End(-9, "", dataclasses.replace(AT_5, examples=5)), KILLED, 3),
        (End(-9, "", dataclasses.replace(AT_5, examples=1)), KILLED, None),
        (End(-9), KILLED, None),  # before training
        (End(-9, OTHER, AT_5), KILLED, 4),  # one of several processes was killed, and the first raised an error
        (End(137, "", AT_5), "ended with status 137 and no error", None),  # os._exit(137), and no signal
        (End(-11, "", TRAINED), "died of SIGSEGV", None),
        (End(3, "", AT_5), "ended with status 3 and no error", None),
        (End(1, GPU, AT_0), "died of a GPU fault", None),
        (End(1, MEMORY, AT_0), "ran out of memory", 4),
        (End(-9, MEMORY, AT_5, hung_for=60.0), "made no progress for 60 s", None),
        (End(0, "", AT_5, hung_for=60.0), "made no progress for 60 s", None),  # SIGTERM may end a script with status 0
    ],
)
def test_a_run_that_dies_starts_again(end, cause, examples):
    expected = Restart(1, cause, end.progress, examples, 7.0)
    assert decide(end, [], most=1, now=7.0) == expected


@pytest.mark.parametrize(
    "end",
    [
        End(0, "", TRAINED),
        End(0, MEMORY, AT_5),  # the script has caught it
        End(137),  # sys.exit(137) before training
        End(137, OTHER, AT_5),  # and in training
        End(137, "", TRAINED),
        End(1),  # before training
        End(2),
        End(1, OTHER, AT_0),
        End(1, OTHER, AT_5),
        End(1, "", TRAINED),  # after training
        *(End(status, "", AT_5) for status in (-2, 130, -15, 143, -1)),  # someone asked for it
    ],
)
def test_a_run_that_ends_by_itself_or_is_stopped_does_not_start_again(end):
    assert decide(end, [], most=3) == ""


def test_status_0_in_the_middle_of_training_is_reported_without_a_restart():
    assert decide(End(0, "", AT_5), [], most=3) == (
        "the run ended with status 0 in the middle of training, after step 5. It is not started again, because status "
        "0 means that the script chose to end."
    )


def test_a_run_without_progress_does_not_start_again():
    restart = decide(End(-6, "", AT_5), [], most=9)
    again = decide(End(-11, "", AT_5), [restart], most=9)
    assert again == (
        "the run died of SIGSEGV after step 5, as the last time. It is not started again, because it makes no "
        "progress."
    )
    for further in ({"step": 6}, {"step": 4}, {"call": 1}, {"folder": "/other"}):
        assert isinstance(decide(End(-6, "", dataclasses.replace(AT_5, **further)), [restart], most=9), Restart)
    before = decide(End(-11), [], most=9)
    assert "no progress" in decide(End(-9), [before], most=9)


@pytest.mark.parametrize(
    ("ends", "examples", "is_over"),
    [
        ([(-9, "", 8), (-9, "", 4), (-9, "", 2), (-9, "", 1)], [4, 2, 1], True),
        ([(1, MEMORY, 8), (1, MEMORY, 4)], [4, 2], False),
        ([(1, MEMORY, 8), (1, MEMORY, 8)], [4], True),  # the batch cannot be split
        ([(1, MEMORY, 8), (1, GPU, 4), (1, GPU, 4)], [4, None], True),
        ([(1, GPU, 8), (1, MEMORY, 8)], [None], True),
        ([(1, MEMORY, 2), (-6, "", 1), (-6, "", 1)], [1, None], True),
        ([(1, MEMORY, 1), (1, MEMORY, 1)], [None], True),
    ],
)
def test_fewer_examples_at_the_same_step_are_progress_until_there_is_one(ends, examples, is_over):
    restarts, decision = [], ""
    for status, error, count in ends:
        decision = decide(End(status, error, dataclasses.replace(AT_5, examples=count)), restarts, most=9)
        if isinstance(decision, Restart):
            restarts.append(decision)
    assert [each.examples for each in restarts] == examples
    assert (isinstance(decision, str) and "makes no progress" in decision) == is_over


def test_restarts_are_used_up():
    restarts = [Restart(1, "died", AT_0)]
    assert decide(End(-6, "", AT_5), restarts, most=1) == (
        "the run died of SIGABRT after step 5, and the one restart is used up."
    )
    assert decide(End(-6, "", AT_5), restarts, most=2) == Restart(2, "died of SIGABRT", AT_5)


def test_the_line_about_a_restart():
    killed = decide(End(-9, "", AT_5), [], most=3)
    assert announcement(killed, 3, 1.0, "out/checkpoint-4") == (
        f"the run {KILLED} after step 5. Restart 1 of 3 in 1 s: it starts from out/checkpoint-4. It trains on 4 "
        "examples at a time; an update has as many as before."
    )
    assert "It trains on 1 example at a time;" in announcement(Restart(1, KILLED, AT_5, examples=1), 3, 1.0, None)
    aborted = decide(End(-6, "", AT_0), [], most=3)
    assert announcement(aborted, 3, 0.5, None) == (
        "the run died of SIGABRT before its first step. Restart 1 of 3 in 0.5 s: it starts as the script begins, "
        "because it has no checkpoint to resume."
    )


def test_the_environment_carries_the_restarts():
    restarts = (Restart(1, "died", AT_5, 4, 1.5), Restart(2, "died"), Restart(3, "died", AT_5, 2))
    supervision = Supervision("id", restarts, "/notes")
    assert Supervision.of(supervision.variables()) == supervision
    assert (supervision.examples("/out"), supervision.examples("/other")) == (2, None)
    assert list(supervision.variables()) == [VARIABLE]


def test_torchrun_is_a_supervisor():
    environ = {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert Supervision.of(environ) == Supervision("a")
    again = Supervision.of({**environ, "TORCHELASTIC_RESTART_COUNT": "2"})
    assert [restart.number for restart in again.restarts] == [2]
    assert Supervision.of({}) is None
