"""Tests the collectives of two processes, and of one process."""

import pytest
import torch
from torch.testing import assert_close

from tests.distributed import messages


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("alone"))
    return {"objects": messages.objects(folder), "tensors": messages.tensors(folder)}


def test_numbers_are_added_and_compared_and_things_gathered(made_by, alone):
    for made in made_by(2)("objects"):
        assert made["sum"] == [3.0, 1.0]
        assert made["highest"] == [1.0, 0.0]
        assert made["gather"] == [{"rank": 0}, {"rank": 1}]
    one = alone["objects"]
    assert (one["sum"], one["highest"], one["gather"]) == ([1, 0.5], [0, 0], [{"rank": 0}])


def test_all_get_what_the_first_one_made(made_by, alone):
    both = made_by(2)("objects")
    assert [made["result"] for made in both] == ["of 0", "of 0"]
    assert [made["ran"] for made in both] == [[0, 0, 0], []]
    assert alone["objects"]["result"] == "of 0"


def test_what_the_first_one_raises_ends_all_and_leaves_them_together(made_by, alone):
    first, second = made_by(2)("objects")
    for made in (first, second, alone["objects"]):
        assert made["the_users"] == ("MisconfigurationException", "No such folder.")
        assert made["after"] == "still together"
    assert first["another"] == alone["objects"]["another"] == ("KeyError", "'loss'")
    kind, said = second["another"]
    assert kind == "AnotherProcessFailedError"
    assert said == "Process 0 has failed, so this one, process 1, ends too. KeyError: 'loss'"


def test_a_result_that_cannot_be_sent_ends_all_and_keeps_nobody_waiting(made_by, alone):
    first, second = made_by(2)("objects")
    assert "pickle" in first["cannot_be_sent"][1]
    assert second["cannot_be_sent"][0] == "AnotherProcessFailedError"
    assert first["cannot_be_sent"][1] in second["cannot_be_sent"][1]
    assert alone["objects"]["cannot_be_sent"] is None


def test_what_one_process_cannot_send_to_the_others_keeps_nobody_waiting(made_by):
    first, second = made_by(2)("objects")
    kind, said = first["gather_cannot_be_sent"]
    assert kind == "AnotherProcessFailedError"
    assert said.startswith("Process 1 has failed, so this one, process 0, ends too. AttributeError: Can't pickle")
    assert said.endswith(second["gather_cannot_be_sent"][1])
    assert second["after"] == "still together"


def test_a_process_that_never_has_a_batch_is_lent_one_of_the_first_that_has(made_by):
    first, second = made_by(2)("objects")
    assert first["in_step"] == [("a", False), ("a", False)]
    assert second["in_step"] == [("a", True), ("b", True)]


ROWS = [[0, 1], [0, 1], [2, 3]]  # what two processes have of uneven tensors
OF_BOTH = {
    "gather": torch.tensor([1, 10, 2, 20]),
    "metrics": (torch.tensor(ROWS), torch.tensor([1, 10, 2, 20])),
    "metrics_by_name": {"rows": torch.tensor(ROWS), "number": torch.tensor([0, 1])},
    "metrics_texts": ["text 0", "other", "text 1", "other"],
    "metrics_uneven": [torch.tensor(ROWS[:1]), torch.tensor(ROWS[1:])],
    "sum": torch.tensor([3, 30]),
}


@pytest.mark.parametrize("name", OF_BOTH)
def test_accelerator_gathers_what_differs_in_length(made_by, name):
    for made in made_by(2)("tensors"):
        if name == "metrics_texts":
            assert made[name] == OF_BOTH[name]
        else:
            assert_close(made[name], OF_BOTH[name], rtol=0, atol=0)


def test_accelerator_of_one_process_gives_back_what_it_gets(alone):
    one = alone["tensors"]
    row, uneven = torch.tensor([1, 10]), torch.tensor([[0, 1]])
    assert_close(one["gather"], row)
    assert_close(one["metrics"], (uneven, row))
    assert one["metrics_texts"] == ["text 0", "other"]
