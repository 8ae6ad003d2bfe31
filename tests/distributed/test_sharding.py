"""A model that is sharded over processes trains as a whole one in one process, and is saved for any number of them."""

import os
import shutil

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from mps_trainer.checkpoints import manifest, shards
from tests.conftest import assert_same_weights, refusal
from tests.distributed import sharding
from tests.distributed.conftest import assert_resumed_exactly, assert_trained_alike

ALIKE = [
    "sharded_tokens",
    "sharded_without_a_label_in_one_process",
    "sharded_and_computed_again",
    "sharded_with_a_cache_and_computed_again",
    "sharded_by_size",
]


@pytest.mark.parametrize("name", ALIKE)
def test_two_processes_train_as_one(made_by, alone, name):
    assert_trained_alike(alone(name), made_by(2)(name))


def test_each_process_holds_half_of_parameters_and_optimizer_and_the_saved_model_is_whole(made_by, alone):
    one = alone("sharded_tokens")
    for made in made_by(2)("sharded_tokens"):
        assert 0.45 < made["own"] / made["whole"] < 0.55
        assert made["apart"] == {True}  # batches of one update exchange no gradients but after the last
        assert made["blocks"] == ["", "transformer.h.0", "transformer.h.1"]
        assert made["after"] == pytest.approx(one["after"], abs=1e-5)
    made = made_by(2)("sharded_tokens")[0]
    model = GPT2LMHeadModel.from_pretrained(made["folder"])
    assert model.config.architectures == ["GPT2LMHeadModel"]
    assert_same_weights(model.state_dict(), made["weights"])


def test_report_and_card_call_the_model_by_its_name_and_the_processes_what_they_are(made_by):
    first, second = made_by(2)("sharded_and_described")
    for made in (first, second):
        assert made["model"]["class"] == "BertForSequenceClassification"
        assert "FSDP" not in made["card"]
        assert "multi-GPU" not in made["card"]
        assert "- distributed_type: 2 processes (gloo, cpu)\n" in made["card"]


def test_activations_that_are_no_numbers_in_a_batch_that_does_not_count_change_nothing(made_by):
    for made in made_by(2)("sharded_with_infinite_activations_of_what_does_not_count"):
        assert np.isfinite(made["infinite"]["norms"]).all()
        assert_same_weights(made["infinite"]["weights"], made["finite"]["weights"])


def test_streams_are_predicted_as_in_one_process_whatever_remains(made_by, alone):
    one = alone("sharded_by_size")["found"]
    for made in made_by(2)("sharded_by_size"):
        for (predictions, labels, loss), expected in zip(made["found"], one, strict=True):
            np.testing.assert_allclose(predictions, expected[0], atol=1e-5, rtol=0)
            np.testing.assert_array_equal(labels, expected[1])
            assert loss == pytest.approx(expected[2], abs=1e-5)


def test_computation_is_in_bfloat16_and_what_is_kept_in_float32(made_by):
    for made in made_by(2)("sharded_in_bfloat16"):
        assert made["used"] == {torch.bfloat16}
        assert made["kept"] == {torch.float32}
        assert made["losses"][-1] < made["losses"][0] - 0.2


def test_a_resumed_run_is_equal_in_every_bit_with_both_kinds_of_checkpoints(made_by):
    for made in made_by(2)("sharded_run_resumed"):
        for kind in (sharding.FULL, sharding.SHARDED):
            assert_resumed_exactly(*made[kind])
        assert_same_weights(made[sharding.FULL][0]["weights"], made[sharding.SHARDED][0]["weights"])


def test_a_full_checkpoint_has_the_files_of_one_process_and_a_sharded_one_a_part_of_each(made_by):
    made = made_by(2)("sharded_checkpoints")[0]
    around = [
        "config.json", "generation_config.json", "loop_state.json", "manifest.json", "rng_state_0.pth",
        "rng_state_1.pth", "scheduler.pt", "trainer_state.json", "training_args.bin",
    ]  # fmt: skip
    parts = [
        f"shards/{what}/shard-0000{rank}-model-00001-of-00001.safetensors"
        for what in ("model", "optimizer")
        for rank in (1, 2)
    ]
    of_weights = [name for name in parts if "model/" in name]
    whole = ["model.safetensors", "optimizer.pt"]
    only = ["config.json", "generation_config.json", "manifest.json", "trainer_state.json", "training_args.bin"]
    for kind, steps, expected in (
        (sharding.FULL, (8, 12), [*around, *whole]),
        (sharding.SHARDED, (8, 12), [*around, "optimizer_rest.pt", *parts]),
        ("weights", (6, 12), [*only, *of_weights]),
    ):
        found = sorted(f"checkpoint-{step}/{name}" for step in steps for name in expected)
        assert made[kind]["files"] == found
    for kind in (sharding.FULL, sharding.SHARDED):
        assert manifest.fault(os.path.join(made["folder"], kind, "checkpoint-8")) is None


@pytest.mark.parametrize("kind", [sharding.FULL, sharding.SHARDED])
def test_one_process_goes_on_from_two_with_a_whole_model(made_by, tmp_path, kind):
    both = made_by(2)("sharded_checkpoints")
    place = os.path.join(both[0]["folder"], kind, "checkpoint-8")
    again = sharding.continued(str(tmp_path / "again"), resume=place)
    assert_trained_alike(again, [made[kind] for made in both], steps=12)


# an end that is missing makes a shorter tensor, which only the manifest tells
@pytest.mark.parametrize(("rank", "is_listed"), [(1, True), (2, True), (1, False)])
def test_a_missing_part_is_found_and_never_read_as_what_is_in_memory(made_by, tmp_path, rank, is_listed):
    made = made_by(2)("sharded_checkpoints")[0]
    place = str(tmp_path / "checkpoint-8")
    shutil.copytree(os.path.join(made["folder"], sharding.SHARDED, "checkpoint-8"), place)
    name = f"shards/model/shard-0000{rank}-model-00001-of-00001.safetensors"
    assert shards.listed(place, shards.WEIGHTS)
    os.remove(os.path.join(place, name))
    if is_listed:
        assert f"{name} is missing" in refusal(sharding.continued, str(tmp_path / "again"), resume=place)
    else:
        os.remove(os.path.join(place, manifest.NAME))
    assert "missing" in refusal(shards.listed, place, shards.WEIGHTS)


def test_several_processes_go_on_from_a_whole_model(made_by):
    for made in made_by(2)("sharded_from_one_process"):
        assert_trained_alike(made["whole"], [made["again"]], steps=12)


def test_a_disk_that_is_full_for_one_process_leaves_no_half_checkpoint_and_what_else_goes_wrong_ends_all(made_by):
    first, second = made_by(2)("sharded_where_the_second_cannot_write")
    for made, told in ((first, 1), (second, 0)):
        assert made["full disk"] == {"raised": None, "told": told, "files": ["checkpoint-2", "checkpoint-6"]}
        assert made["fault"]["raised"][0] == "KeyError"
    assert first["fault"]["files"] == ["checkpoint-2"]


def test_a_run_stops_before_the_step_that_is_no_number_with_a_checkpoint(made_by):
    both = made_by(2)("sharded_until_it_is_no_number")
    assert [made["step"] for made in both] == [4, 4]
    assert both[0]["files"] == ["checkpoint-3"]


def test_every_optimizer_that_is_offered_trains_alike_and_goes_on(made_by, alone):
    one = alone("sharded_optimizers")
    for made in made_by(2)("sharded_optimizers"):
        for name, losses in one.items():
            np.testing.assert_allclose(made[name]["losses"], losses["losses"], atol=1e-5, rtol=0)
            np.testing.assert_array_equal(made[name]["again"], made[name]["losses"])


def test_four_processes_train_as_one_and_go_on_from_two(made_by, made_by_four, alone):
    """Of some parameters a process has no part at all."""
    assert_trained_alike(alone("sharded_by_size"), made_by_four("sharded_by_size"))
    both = made_by(2)("sharded_checkpoints")[0]
    for made in made_by_four("sharded_from_two_processes"):
        for kind in (sharding.FULL, sharding.SHARDED):
            assert_trained_alike(both[kind], [made[kind]], steps=12)
