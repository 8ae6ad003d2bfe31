"""The scripts on the page about moving over: both sides of each diff run, and learn the same."""

from typing import Any

import pytest
import torch

from ..dropin.conftest import assert_same
from .pages import Block, all_blocks

DIFFS = {block.label: block for block in all_blocks("diff", "diff")}
# With it the rows come in one order on both sides: a shuffled loader of torch has another order.
IN_ORDER = {
    "shuffle=True": "shuffle=False",
    'output_dir="out"': 'output_dir="out", train_sampling_strategy="sequential"',
}


def side(block: Block, left_out: str) -> str:
    """Returns the script before, without lines that begin with "+", or the script after, without those with "-"."""
    return "\n".join(line[1:] for line in block.text.splitlines() if not line.startswith(left_out))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a side in a folder of its own. Returns its names afterwards."""
    from accelerate.state import AcceleratorState, GradientState

    def run(block: Block, left_out: str) -> dict[str, Any]:
        text = side(block, left_out)
        if block.label != "transformers":
            for words, instead in IN_ORDER.items():
                text = text.replace(words, instead)
        folder = tmp_path / ("after" if left_out == "-" else "before")
        folder.mkdir()
        monkeypatch.chdir(folder)
        names: dict[str, Any] = {}
        exec(compile("\n" * block.line + text, block.page, "exec"), names)
        return names

    yield run
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("label", DIFFS)
def test_both_sides_learn_the_same(label, run):
    after, before = run(DIFFS[label], "-"), run(DIFFS[label], "+")
    assert "mps_trainer" not in side(DIFFS[label], "+")
    theirs, ours = (names["model"].state_dict() for names in (before, after))
    assert theirs.keys() == ours.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name].cpu(), weight.cpu(), rtol=1e-5, atol=1e-6)
    if label == "transformers":
        assert_same(after["trainer"], before["trainer"])
