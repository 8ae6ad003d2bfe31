"""Tests which of Accelerate's settings are converted, and the reasons for the others."""

import pytest
import yaml

from mps_trainer.launching.config_file import accelerate_file, convert
from tests.conftest import refusal


@pytest.fixture
def written_by_accelerate(tmp_path):
    def write(**settings):
        from accelerate.commands.config.config_args import ClusterConfig

        given = {"compute_environment": "LOCAL_MACHINE", "debug": False, "use_cpu": False, "mixed_precision": "no"}
        ClusterConfig(**{**given, **settings}).to_yaml_file(tmp_path / "accelerate.yaml")
        return yaml.safe_load((tmp_path / "accelerate.yaml").read_text())

    return write


@pytest.mark.parametrize(
    ("settings", "converted"),
    [
        ({"distributed_type": "NO", "num_processes": 1}, {"num_processes": 1}),
        ({"distributed_type": "NO", "use_cpu": True}, {"device": "cpu"}),
        ({"distributed_type": "MULTI_CPU", "num_processes": 4}, {"device": "cpu", "num_processes": 4}),
        ({"distributed_type": "MULTI_GPU", "gpu_ids": "all"}, {"device": "cuda"}),
        ({"distributed_type": "NO", "mixed_precision": "fp16"}, {"mixed_precision": "fp16"}),
    ],
)
def test_convert_ignores_nothing_that_has_an_equivalent(written_by_accelerate, settings, converted):
    assert convert(written_by_accelerate(**settings), "f") == ({"mixed_precision": "no", **converted}, {})


def test_convert_knows_the_names_of_older_releases():
    values = {"distributed_type": "MPS", "mixed_precision": None, "num_processes": 1, "downcast_bf16": "no"}
    assert convert(values, "f")[0] == {"device": "mps", "num_processes": 1}


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}}, {"deepspeed_config"}),
        ({"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}, {"fsdp_config"}),
        ({"distributed_type": "MEGATRON_LM", "megatron_lm_config": {"tp": 2}}, {"megatron_lm_config"}),
        ({"distributed_type": "XLA", "tpu_name": "pod", "downcast_bf16": True}, {"tpu_name", "downcast_bf16"}),
    ],
)
def test_convert_ignores_other_kinds_of_distribution_with_their_processes(written_by_accelerate, settings, ignored):
    values = written_by_accelerate(num_processes=8, mixed_precision="bf16", **settings)
    converted, reasons = convert(values, "f")
    assert converted == {"mixed_precision": "bf16"}
    assert set(reasons) == {"distributed_type", "num_processes", *ignored}


def test_convert_names_every_ignored_key_that_would_change_a_run(written_by_accelerate):
    changing = {
        "gpu_ids": "0,1",
        "num_machines": 2,
        "machine_rank": 1,
        "main_process_ip": "10.0.0.1",
        "main_process_port": 29500,
        "debug": True,
        "enable_cpu_affinity": True,
        "dynamo_config": {"dynamo_backend": "INDUCTOR"},
        "mpirun_config": {"mpirun_ccl": "1"},
        "mixed_precision": "fp8",
    }
    values = {**written_by_accelerate(distributed_type="MULTI_GPU", **changing), "of_the_future": 1}
    converted, reasons = convert(values, "f")
    assert reasons.keys() == {*changing, "of_the_future"}
    assert all(len(why) > 10 for why in reasons.values())
    assert converted == {"device": "cuda"}


def test_convert_takes_nothing_of_another_computer():
    converted, reasons = convert({"compute_environment": "AMAZON_SAGEMAKER", "mixed_precision": "bf16"}, "f")
    assert converted == {}
    assert "AMAZON_SAGEMAKER" in reasons["compute_environment"]


@pytest.mark.parametrize("wrong", [{"num_processes": "two"}, {"mixed_precision": "half"}, {"use_cpu": "maybe"}])
def test_convert_refuses_a_value_of_the_wrong_type(wrong):
    (name,) = wrong
    assert refusal(convert, {"distributed_type": "NO", **wrong}, "f").startswith(f"f: {name}='")


def test_accelerate_file_is_where_accelerate_looks_for_it(tmp_path):
    folder = tmp_path / "hf" / "accelerate"
    environ = {"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": "/elsewhere"}
    assert accelerate_file(environ) == folder / "default_config.yaml"
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert accelerate_file(cache) == tmp_path / "huggingface" / "accelerate" / "default_config.yaml"
    assert str(accelerate_file({})).endswith("/.cache/huggingface/accelerate/default_config.yaml")
    assert "~" not in str(accelerate_file({}))
