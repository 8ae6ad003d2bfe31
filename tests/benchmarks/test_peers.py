"""The peers do the same work: what one learns the others learn."""

import copy

import pytest
import torch

from benchmarks.peers import PEERS
from benchmarks.tasks import loss_after, one_layer, small_bert

pytestmark = pytest.mark.integration

STEPS = 20


def trained(name, make, folder):
    """The model after the peer trained it, its task, and the batches it was given."""
    reason = PEERS[name].why_left_out()
    if reason is not None:
        pytest.skip(reason)
    model, task = make(STEPS, folder=str(folder))
    batches = []

    def note(module, args, batch):
        torch.manual_seed(len(batches))  # the same dropout for all
        # The Trainers also tell a BERT how many items there are, which changes nothing here.
        batches.append(copy.deepcopy({key: batch[key] for key in batch if key != "num_items_in_batch"}))

    watch = model.register_forward_pre_hook(note, with_kwargs=True)
    PEERS[name].train()(model, task)
    watch.remove()
    return model, task, batches


@pytest.mark.parametrize("make", [one_layer, small_bert])
@pytest.mark.parametrize("name", [name for name in PEERS if name != "bare"])
def test_a_peer_sees_the_batches_of_the_bare_loop_and_learns_what_it_learns(name, make, tmp_path):
    model, task, batches = trained(name, make, tmp_path)
    expected, _, of_bare = trained("bare", make, tmp_path)
    assert len(batches) == STEPS
    for batch, other in zip(batches, of_bare, strict=True):
        assert batch.keys() == other.keys()
        assert all(torch.equal(batch[key], other[key]) for key in batch)
    # The fused optimizer rounds otherwise than the loop over parameters: by some units in the last place of float32.
    assert loss_after(model, task) == pytest.approx(loss_after(expected, task), rel=1e-5)
