"""`fsdp` and `fsdp_config`: what they may be, and what does not go with them."""

import dataclasses
import json
import logging
import re

import pytest
import transformers
from transformers import HfArgumentParser

from mps_trainer import TrainingArguments
from mps_trainer.arguments.sharding import KEYS, without_effect
from tests.conftest import examples, refusal


def args(**settings):
    return TrainingArguments(output_dir="run", **settings)


@pytest.mark.parametrize(
    ("fsdp", "means"),
    [
        (True, {}),
        ("true", {}),
        ("full_shard", {"reshard_after_forward": True}),
        ("full_shard auto_wrap", {"reshard_after_forward": True}),
        (["shard_grad_op", "offload"], {"reshard_after_forward": False, "cpu_offload": True}),
        ([transformers.trainer_utils.FSDPOption.FULL_SHARD], {"reshard_after_forward": True}),
    ],
)
def test_options_stand_for_settings_and_do_not_replace_any(fsdp, means):
    made = args(fsdp=fsdp)
    assert made.fsdp is True
    assert {name: made.fsdp_config.get(name) for name in means} == means
    kept = args(fsdp=fsdp, fsdp_config={"reshard_after_forward": "false"})
    assert kept.fsdp_config["reshard_after_forward"] is False


@pytest.mark.parametrize("fsdp", [None, False, "", "false", []])
def test_without_it_the_settings_are_left_alone(fsdp):
    made = args(fsdp=fsdp, fsdp_config={"xla": True})
    assert not made.fsdp
    assert made.fsdp_config == {"xla": True}
    assert without_effect(made) == ["fsdp_config has an effect with fsdp=True only."]


def test_settings_are_those_of_transformers(tmp_path):
    given = {
        "fsdp_transformer_layer_cls_to_wrap": "BertLayer",
        "state_dict_type": "SHARDED_STATE_DICT",
        "reshard_after_forward": False,
        "activation_checkpointing": True,
        "fsdp_version": 2,
    }
    path = tmp_path / "fsdp.json"
    path.write_text(json.dumps(given))
    theirs = transformers.TrainingArguments("run", use_cpu=True, fsdp=True, fsdp_config=dict(given))
    for source in (given, json.dumps(given), str(path), path):
        made = args(fsdp=True, fsdp_config=source)
        assert made.fsdp is theirs.fsdp
        assert made.fsdp_config == theirs.fsdp_config
    assert dataclasses.replace(made) == made
    assert TrainingArguments(**made.to_dict()).fsdp_config == made.fsdp_config


def test_flags(tmp_path):
    path = tmp_path / "fsdp.json"
    path.write_text('{"state_dict_type": "SHARDED_STATE_DICT"}')
    parser = HfArgumentParser(TrainingArguments)
    for flags in (["--fsdp", "full_shard"], ["--fsdp"]):
        (made,) = parser.parse_args_into_dataclasses([*flags, "--fsdp_config", str(path), "--output_dir", "run"])
        assert made.fsdp is True
        assert made.fsdp_config["state_dict_type"] == "SHARDED_STATE_DICT"


REFUSED = [
    ({"fsdp": "full_shart"}, "fsdp='full_shart' is not accepted: it must be true or false, or of full_shard, "),
    ({"fsdp": "full_shard shard_grad_op"}, "it must be one of full_shard and shard_grad_op."),
    ({"fsdp_config": "no/such.json"}, "fsdp_config='no/such.json' cannot be read: No such file or directory."),
    ({"fsdp_config": "{nothing"}, "fsdp_config='{nothing' is not accepted: it must be a JSON object ("),
    ({"fsdp_config": [1]}, "fsdp_config=[1] is not accepted: it must be a dictionary"),
    ({"fsdp_config": {"state_dict_typ": "x"}}, "an unknown key 'state_dict_typ'. Did you mean state_dict_type?"),
    ({"fsdp_config": {"zero": 1}}, "an unknown key 'zero'. Known are version, "),
    ({"fsdp_config": {"state_dict_type": "LOCAL"}}, "it must be one of FULL_STATE_DICT, SHARDED_STATE_DICT."),
    ({"fsdp_config": {"cpu_offload": "perhaps"}}, "fsdp_config: cpu_offload='perhaps' is not accepted"),
    ({"fsdp_config": {"min_num_params": -1}}, "fsdp_config: min_num_params=-1 is not accepted"),
    ({"fsdp_config": {"transformer_layer_cls_to_wrap": [1]}}, "it must be a name, or a list of names."),
    ({"fsdp_config": {"mixed_precision_policy": "int8"}}, "it must be one of bf16, fp16, fp32."),
    ({"fsdp_config": {"mixed_precision_policy": {"dtype": "bf16"}}}, "or have param_dtype, reduce_dtype, "),
    ({"fsdp_config": {"version": 1}}, "fsdp_config: version=1 is not supported: "),
    ({"fsdp_config": {"xla": True}}, "fsdp_config: xla=True is not supported: there is no TPU here. Leave it out."),
    ({"fsdp_config": {"cpu_ram_efficient_loading": True}}, "cpu_ram_efficient_loading=True is not supported: "),
    ({"fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": True}, "can't both be set to True"),
    ({"fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}, "save_on_each_node": True}, "save_on_each_node=True"),
    (
        {"fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}, "push_to_hub": True, "hub_strategy": "every_save"},
        "hub_strategy='every_save' uploads the weights of each checkpoint",
    ),
    ({"fsdp_config": {"fsdp_min_num_params": 1, "min_num_params": 2}}, "=1, which are one key with two values. Leave"),
    ({"torch_compile": True}, "torch_compile=True with fsdp=True is not supported"),
    ({"bf16_full_eval": True}, "bf16_full_eval=True does not work with fsdp=True: "),
    ({"optim": "adafactor"}, "optim='adafactor' does not go with fsdp=True, "),
]


@pytest.mark.parametrize(("given", "says"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(given, says):
    assert says in refusal(args, **{"fsdp": True, **given})


def test_what_changes_nothing_is_told():
    config = {
        "backward_prefetch": "backward_pre", "use_orig_params": True, "min_num_params": 9,
        "transformer_layer_cls_to_wrap": "A", "auto_wrap_policy": "NO_WRAP", "sync_module_states": False,
    }  # fmt: skip
    said = without_effect(args(fsdp=True, fsdp_config=config, gradient_checkpointing=True))
    assert [sentence.partition(" has no effect")[0].partition("=")[0] for sentence in said] == [
        "fsdp_config: use_orig_params",
        "fsdp_config: backward_prefetch",
        "fsdp_config: min_num_params",
        "fsdp_config: transformer_layer_cls_to_wrap",
        "activation_checkpointing",
    ]


def test_a_key_that_is_there_twice_may_say_the_same():
    config = {"transformer_layer_cls_to_wrap": ["A"], "fsdp_transformer_layer_cls_to_wrap": "A"}
    assert args(fsdp=True, fsdp_config=config).fsdp_config["transformer_layer_cls_to_wrap"] == ["A"]


def test_blocks_by_size_without_a_size_are_none_as_under_accelerate_and_that_is_told():
    (said,) = without_effect(args(fsdp=True, fsdp_config={"auto_wrap_policy": "SIZE_BASED_WRAP"}))
    assert said.startswith("fsdp_config: auto_wrap_policy='SIZE_BASED_WRAP' has no effect without min_num_params")
    assert "min_num_params=" in said
    config = {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 9}
    assert without_effect(args(fsdp=True, fsdp_config=config)) == []


def test_every_key_of_transformers_is_known():
    """As its documentation of `fsdp_config` lists them."""
    listed = transformers.TrainingArguments.__doc__.partition("Supported keys:")[2].partition("DeepSpeed")[0]
    names = [line.split("(")[0].strip(" -`") for line in listed.splitlines() if line.strip().startswith("- ")]
    assert len(names) > 10
    assert [name for name in names if name not in KEYS] == []


def test_one_process_does_not_shard_and_is_warned_of_settings_that_change_nothing(make_trainer, caplog):
    assert re.search(r"^fsdp=True shards .* and this is one\. Start ", refusal(make_trainer, fsdp=True))
    with caplog.at_level(logging.WARNING):
        make_trainer(trainer={"train_dataset": examples(8)}, fsdp_config={"state_dict_type": "FULL_STATE_DICT"})
    assert "fsdp_config has an effect with fsdp=True only." in caplog.text


def test_sharding_is_refused_on_mps_and_over_mlx(make_trainer, mps):
    for settings in ({}, {"use_cpu": True, "ddp_backend": "mlx"}):
        assert "FSDP2, which runs neither on mps nor over MLX." in refusal(make_trainer, fsdp=True, **settings)
