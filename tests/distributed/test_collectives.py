"""Tests the collectives of two processes, and of one process."""

import torch
from torch.testing import assert_close

from tests.distributed import messages  # noqa: F401  adds its scenarios


def test_numbers_are_added_and_compared_and_things_gathered_or_made_by_the_first(made_by, alone):
    first, second = made_by(2)("objects")
    for made in (first, second):
        assert (made["sum"], made["highest"]) == ([3.0, 1.0], [1.0, 0.0])
        assert made["gather"] == [{"rank": 0}, {"rank": 1}]
    one = alone("objects")
    assert (one["sum"], one["highest"], one["gather"]) == ([1, 0.5], [0, 0], [{"rank": 0}])
    assert first["result"] == second["result"] == one["result"] == "of 0"
    assert (first["ran"], second["ran"]) == ([0, 0, 0], [])
    # a process that never has a batch is lent one of the first that has
    assert first["in_step"] == [("a", False), ("a", False)]
    assert second["in_step"] == [("a", True), ("b", True)]


def test_what_one_raises_or_cannot_send_ends_all_and_leaves_them_together(made_by, alone):
    first, second = made_by(2)("objects")
    one = alone("objects")
    for made in (first, second, one):
        assert made["the_users"] == ("MisconfigurationException", "No such folder.")
        assert made["after"] == "still together"
    assert first["another"] == one["another"] == ("KeyError", "'loss'")
    kind, said = second["another"]
    assert kind == "AnotherProcessFailedError"
    assert said == "Process 0 has failed, so this one, process 1, ends too. KeyError: 'loss'"
    assert "pickle" in first["cannot_be_sent"][1]
    assert second["cannot_be_sent"][0] == "AnotherProcessFailedError"
    assert first["cannot_be_sent"][1] in second["cannot_be_sent"][1]
    assert one["cannot_be_sent"] is None
    kind, said = first["gather_cannot_be_sent"]
    assert kind == "AnotherProcessFailedError"
    assert said.startswith("Process 1 has failed, so this one, process 0, ends too. AttributeError: Can't pickle")
    assert said.endswith(second["gather_cannot_be_sent"][1])


ROWS = [[0, 1], [0, 1], [2, 3]]  # two processes have these rows of uneven tensors
OF_BOTH = {
    "gather": torch.tensor([1, 10, 2, 20]),
    "metrics": (torch.tensor(ROWS), torch.tensor([1, 10, 2, 20])),
    "metrics_by_name": {"rows": torch.tensor(ROWS), "number": torch.tensor([0, 1])},
    "metrics_uneven": [torch.tensor(ROWS[:1]), torch.tensor(ROWS[1:])],
    "sum": torch.tensor([3, 30]),
}


def test_accelerator_gathers_what_differs_in_length(made_by):
    for made in made_by(2)("tensors"):
        assert made.pop("metrics_texts") == ["text 0", "other", "text 1", "other"]
        assert_close(made, OF_BOTH, rtol=0, atol=0)
