"""The processes of `mlx.launch`, from the variables that it sets."""

import json

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.devices.facts import _launcher_facts
from mps_trainer.devices.mlx_launch import mlx_launch_facts


def written(folder, content):
    file = folder / "hosts.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


def test_ranks_over_tcp_come_from_the_host_file(tmp_path):
    hosts = [["10.0.0.1:32323"], ["10.0.0.2:32324", "10.0.1.2:32325"], ["10.0.0.2:32326"]]
    environ = {"MLX_RANK": "2", "MLX_HOSTFILE": written(tmp_path, hosts)}
    assert _launcher_facts(environ) == {
        **_launcher_facts({}),
        "mlx_launch": True,
        "world_size": 3,
        "rank": 2,
        "local_rank": 1,
        "local_world_size": 2,
        "master_addr": "10.0.0.1",
        "master_port": 32322,
    }
    assert _launcher_facts({**environ, "MASTER_PORT": "999"})["master_port"] == 999


def test_ranks_over_rdma_come_from_the_devices(tmp_path):
    devices = written(tmp_path, [[None, "rdma_en5"], ["rdma_en5", None]])
    facts = mlx_launch_facts({"MLX_RANK": "1", "MLX_IBV_DEVICES": devices, "MLX_JACCL_COORDINATOR": "10.0.0.1:32323"})
    assert (facts["world_size"], facts["rank"], facts["local_rank"]) == (2, 1, 0)
    assert (facts["master_addr"], facts["master_port"]) == ("10.0.0.1", 32322)


def test_torchrun_goes_before_variables_that_were_left_behind(tmp_path):
    environ = {"MLX_RANK": "1", "MLX_HOSTFILE": written(tmp_path, [["a:1"], ["b:2"]]), "RANK": "0", "WORLD_SIZE": "4"}
    assert (_launcher_facts(environ)["world_size"], "mlx_launch" in _launcher_facts(environ)) == (4, False)


@pytest.mark.parametrize("content", ["", {}, [["10.0.0.1:32323"]]])
def test_one_process_of_mlx_launch_is_one_process(tmp_path, content):
    assert mlx_launch_facts({"MLX_RANK": "0", "MLX_HOSTFILE": written(tmp_path, content)}) == {}


@pytest.mark.parametrize(
    ("content", "rank"), [("{", "0"), ([1, 2], "0"), ([["a:1"], ["b:2"]], "two"), ([["a:1"], ["b:2"]], "2")]
)
def test_other_variables_than_those_of_mlx_launch_are_refused(tmp_path, content, rank):
    environ = {"MLX_RANK": rank, "MLX_HOSTFILE": written(tmp_path, content)}
    with pytest.raises(MisconfigurationException, match=r"as mlx\.launch sets it, but its other variables do not fit"):
        mlx_launch_facts(environ)
