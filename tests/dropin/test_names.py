"""The Trainer has the names and signatures of transformers'; its own names do not collide with those of subclasses."""

import inspect
import re
from pathlib import Path

import pytest
from transformers import Seq2SeqTrainer as TheirSeq2SeqTrainer
from transformers import Trainer as TheirTrainer

from mps_trainer import Seq2SeqTrainer, Trainer, trainer_checks

from .conftest import CHECKPOINTING

LIBRARIES = Path(__file__).with_name("names_of_libraries.txt")
TRAINERS = pytest.mark.parametrize(
    ("ours", "theirs"), [(Trainer, TheirTrainer), (Seq2SeqTrainer, TheirSeq2SeqTrainer)], ids=["Trainer", "Seq2Seq"]
)
# Names without the prefix that transformers 5.23 does not have: documented here, or transformers' until lately.
WITHOUT_PREFIX = {
    "end",  # docs/distributed.md documents it
    "ignore_keys_for_eval",
    "loss_is_scaled_for_ga",  # the docstring of compute_loss documents it
    "num_tokens",  # transformers 4 has it
    "split_batch",  # docs/memory.md documents it
    "tokenizer",  # transformers 4 has it
    "_rotate_checkpoints",  # transformers 4 has it
}


def assigned(kind: type) -> set[str]:
    """Returns the names of `kind`, and those that the methods of its classes assign to self."""
    names = {name for name in dir(kind) if not name.startswith("__")}
    for each in kind.__mro__:
        if each is not object:
            names |= set(re.findall(r"\bself\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(each)))
            names |= set(re.findall(r"\bself\.(\w+), self\.\w+ = ", inspect.getsource(each)))
            names |= set(re.findall(r"\bself\.\w+, self\.(\w+) = ", inspect.getsource(each)))
    return names


@TRAINERS
def test_own_names_have_the_prefix(ours, theirs):
    used_there = set(re.findall(r"\bself\.(\w+)", inspect.getsource(inspect.getmodule(TheirTrainer))))
    own = assigned(ours) - assigned(theirs) - used_there
    assert {name for name in own if not name.startswith("_mt_")} <= WITHOUT_PREFIX


# Methods of transformers' training loop that this one does not have. A subclass that defines one of trainer_checks's
# is refused; the others are of parallel forms that are refused, or of Accelerate.
NO_COUNTERPART = {
    *trainer_checks._NOT_CALLED,
    "_build_accelerator_args",
    "_defer_fsdp_gradient_reduction",
    "_has_mixed_mesh_grads",
    "_mixed_mesh_grad_norm",
    "_prepare_context_parallel_inputs",
    "_sync_replicated_trainable_parameters",
    "_update_auto_batch_size",
    "_validate_args",
}


def signature(method) -> list[tuple]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()]


@pytest.mark.skipif(not hasattr(TheirTrainer, "_finalize_training"), reason="The methods are transformers 5.23's.")
@TRAINERS
def test_methods_have_signatures_of_transformers(ours, theirs):
    methods = {name for name in dir(theirs) if not name.startswith("__") and callable(getattr(theirs, name))}
    assert len(methods) > 80
    assert {name for name in methods if not hasattr(ours, name)} == NO_COUNTERPART & methods
    older = {"init_hf_repo", "push_to_hub"} if CHECKPOINTING == "gradient_checkpointing" else set()
    shared = methods - NO_COUNTERPART - older  # without an argument that came after transformers 5.20
    assert {name for name in shared if signature(getattr(ours, name)) != signature(getattr(theirs, name))} == set()


def test_libraries_do_not_assign_own_names():
    names = set(LIBRARIES.read_text(encoding="utf-8").splitlines()[2:])
    assert len(names) > 300
    assert {"_metrics", "_generate"} <= names
    own = assigned(Seq2SeqTrainer) - assigned(TheirSeq2SeqTrainer)
    assert not own & names
