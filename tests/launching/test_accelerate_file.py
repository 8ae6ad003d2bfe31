"""Tests which of Accelerate's settings are used, and the message about the others."""

from __future__ import annotations

import pytest
import yaml

from mps_trainer import MisconfigurationException
from mps_trainer.launching.accelerate_file import accelerate_file, is_accelerates, take_over
from mps_trainer.launching.settings import LaunchSettings


def written_by_accelerate(tmp_path, **settings):
    """As `accelerate config` writes it."""
    from accelerate.commands.config.config_args import ClusterConfig

    given = {"compute_environment": "LOCAL_MACHINE", "debug": False, "use_cpu": False, "mixed_precision": "no"}
    ClusterConfig(**{**given, **settings}).to_yaml_file(tmp_path / "accelerate.yaml")
    return yaml.safe_load((tmp_path / "accelerate.yaml").read_text())


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({"distributed_type": "NO", "num_processes": 1}, LaunchSettings(None, "no", None, 1)),
        ({"distributed_type": "NO", "use_cpu": True, "num_processes": 1}, LaunchSettings("cpu", "no", None, 1)),
        ({"distributed_type": "MULTI_CPU", "num_processes": 4}, LaunchSettings("cpu", "no", None, 4)),
        (
            {"distributed_type": "MULTI_GPU", "num_processes": 2, "mixed_precision": "bf16", "gpu_ids": "all"},
            LaunchSettings("cuda", "bf16", None, 2),
        ),
        ({"distributed_type": "NO", "mixed_precision": "fp16"}, LaunchSettings(None, "fp16")),
    ],
)
def test_what_means_the_same_is_taken_over(tmp_path, settings, taken):
    values = written_by_accelerate(tmp_path, **settings)
    found = take_over(values, "f")
    assert is_accelerates(values)
    assert (found.settings, found.left) == (taken, {})


def test_the_name_that_accelerate_had_for_mps_is_known():
    values = {"distributed_type": "MPS", "mixed_precision": None, "num_processes": 1, "downcast_bf16": "no"}
    assert take_over(values, "f").settings == LaunchSettings("mps", None, None, 1)
    assert take_over({"distributed_type": "NO", "fp16": True}, "f").settings.mixed_precision == "fp16"


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}}, {"deepspeed_config"}),
        ({"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}, {"fsdp_config"}),
        ({"distributed_type": "MEGATRON_LM", "megatron_lm_config": {"tp": 2}}, {"megatron_lm_config"}),
        ({"distributed_type": "XLA", "tpu_name": "pod", "downcast_bf16": True}, {"tpu_name", "downcast_bf16"}),
    ],
)
def test_another_way_of_distributing_is_left_with_its_number_of_processes(tmp_path, settings, left):
    values = written_by_accelerate(tmp_path, num_processes=8, mixed_precision="bf16", **settings)
    found = take_over(values, "f")
    assert found.settings == LaunchSettings(mixed_precision="bf16")
    assert set(found.left) == {"distributed_type", "num_processes", *left}


def test_every_key_that_changes_something_is_told_and_why(tmp_path):
    values = written_by_accelerate(
        tmp_path,
        distributed_type="MULTI_GPU",
        mixed_precision="fp8",
        gpu_ids="0,1",
        num_machines=2,
        machine_rank=1,
        main_process_ip="10.0.0.1",
        main_process_port=29500,
        debug=True,
        enable_cpu_affinity=True,
        dynamo_config={"dynamo_backend": "INDUCTOR"},
        mpirun_config={"mpirun_ccl": "1"},
    )
    found = take_over({**values, "of_the_future": 1}, "f")
    changing = ["gpu_ids", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "debug"]
    changing += ["enable_cpu_affinity", "dynamo_config", "mpirun_config", "mixed_precision", "of_the_future"]
    assert sorted(found.left) == sorted(changing)
    assert all(len(why) > 10 for why in found.left.values())
    assert found.settings == LaunchSettings("cuda")


def test_nothing_of_another_computer_is_taken_over():
    found = take_over({"compute_environment": "AMAZON_SAGEMAKER", "mixed_precision": "bf16"}, "f")
    assert found.settings == LaunchSettings()
    assert "AMAZON_SAGEMAKER" in found.left["compute_environment"]


@pytest.mark.parametrize("wrong", [{"num_processes": "two"}, {"mixed_precision": "half"}, {"use_cpu": "maybe"}])
def test_a_wrong_type_is_refused_by_its_own_name(wrong):
    (name,) = wrong
    with pytest.raises(MisconfigurationException, match=f"^f has {name}: '"):
        take_over({"distributed_type": "NO", **wrong}, "f")


def test_the_file_is_where_accelerate_looks_for_it(tmp_path):
    folder = tmp_path / "hf" / "accelerate"
    environ = {"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": "/elsewhere"}
    assert accelerate_file(environ) == folder / "default_config.yaml"
    folder.mkdir(parents=True)
    (folder / "default_config.json").touch()
    assert accelerate_file(environ) == folder / "default_config.json"
    (folder / "default_config.yaml").touch()
    assert accelerate_file(environ) == folder / "default_config.yaml"
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert accelerate_file(cache) == tmp_path / "huggingface" / "accelerate" / "default_config.yaml"
    assert str(accelerate_file({})).endswith("/.cache/huggingface/accelerate/default_config.yaml")
    assert "~" not in str(accelerate_file({}))
