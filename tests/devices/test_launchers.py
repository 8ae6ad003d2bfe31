"""The variables that launchers set: `srun`, as Slurm 23 does, and `mlx.launch`."""

import json
import re

import pytest

from mps_trainer import MachineFacts
from mps_trainer.devices.launchers import slurm_facts
from tests.conftest import refusal
from tests.devices.test_facts import gathered, mac_probes

# `sbatch --nodes 4 --ntasks 7`, in which `srun python train.py` starts task 4, on the third node.
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NODELIST": "node[03-05,07]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
}
BATCH = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
# `srun --ntasks 1 --pty bash`, or the shell of `salloc` on a cluster that makes it a step
SHELL = {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0"}

PLACE = ("world_size", "rank", "local_rank", "local_world_size", "master_addr", "master_port")


def facts_of(environ: dict[str, str]) -> MachineFacts:
    return gathered(mac_probes(system=lambda: "Linux"), environ)


def place(environ: dict[str, str]) -> tuple:
    facts = facts_of(environ)
    return tuple(getattr(facts, name) for name in PLACE)


def test_a_task_of_a_step_has_its_place_and_a_meeting_point_unless_the_script_exports_one():
    assert place(STEP) == (7, 4, 0, 2, "node03", 24711)
    assert facts_of(STEP).slurm
    last = {**STEP, "SLURM_PROCID": "6", "SLURM_NODEID": "3"}
    assert place(last) == (7, 6, 0, 1, "node03", 24711)
    exported = {"WORLD_SIZE": "7", "MASTER_ADDR": "10.0.0.3", "MASTER_PORT": "29400"}
    assert place({**STEP, **exported}) == (7, 4, 0, 2, "10.0.0.3", 29400)
    assert place({**STEP, "WORLD_SIZE": "1"})[:2] == (1, None)


@pytest.mark.parametrize("environ", [{}, BATCH, SHELL, {"SLURM_NTASKS": "7"}])
def test_a_shell_in_an_allocation_is_one_process(environ):
    assert slurm_facts(environ) == {}
    assert place(environ) == (None,) * 6


def test_torchrun_under_srun_goes_before_the_step_of_which_it_is_a_task():
    torchrun = {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    address = {"MASTER_ADDR": "node03", "MASTER_PORT": "29500"}
    assert place({**STEP, **torchrun, **address}) == (8, 5, 1, 2, "node03", 29500)
    assert not facts_of({**STEP, **torchrun, **address}).slurm
    as_many = {"WORLD_SIZE": "7", "RANK": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert place({**STEP, **as_many, **address}) == (7, 3, 0, 1, "node03", 29500)


@pytest.mark.parametrize(
    ("tasks", "node", "here"),
    [("2(x3),1", 0, 2), ("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("8", 0, 8), ("4,2", 1, 2), ("1(x999999999)", 70, 1)],
)
def test_the_tasks_of_the_own_node_are_counted(tasks, node, here):
    step = {**STEP, "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node)}
    assert slurm_facts(step)["local_world_size"] == here


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node03", "node03"),
        ("node[03-05,07],gpu1", "node03"),
        ("node[007-009]", "node007"),
        ("rack[1-2]node[04-05,9]", "rack1node04"),
        ("c[1,3]-ib.cluster.org,d4", "c1-ib.cluster.org"),
    ],
)
def test_the_first_host_of_a_list_is_where_the_processes_meet(nodes, first):
    assert slurm_facts({**STEP, "SLURM_STEP_NODELIST": nodes})["master_addr"] == first


def test_jobs_and_steps_meet_at_ports_of_their_own_that_no_connection_takes():
    def port(job: int, step: int) -> int:
        return slurm_facts({**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})["master_port"]

    assert len({port(job, step) for job in (99, 100, 101) for step in (0, 1, 2)}) == 9
    assert all(20000 <= port(job, step) < 32768 for job in (1, 12768, 4294967295) for step in (0, 9999))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SLURM_STEP_NUM_TASKS", "seven", "is 'seven', which is not a whole number from 1 to "),
        ("SLURM_PROCID", "7", "is '7', which is not a whole number from 0 to 6"),
        ("SLURM_PROCID", None, "SLURM_PROCID is not set"),
        ("SLURM_LOCALID", "-1", "is '-1'"),
        ("SLURM_LOCALID", "2", "is '2', which is not a whole number from 0 to 1"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x3", "is '2(x3', which has no number such as 2(x3) for node 2"),
        ("SLURM_STEP_TASKS_PER_NODE", "0(x9)", "is '0(x9)', which has no number such as 2(x3) for node 2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2)", "is '2(x2)', which has no number such as 2(x3) for node 2"),
        ("SLURM_STEP_NODELIST", "node[03-05", "is 'node[03-05', which is not a list of hosts"),
        ("SLURM_JOB_ID", "4711_2", "is '4711_2'"),
    ],
)
def test_a_malformed_variable_is_told_in_a_line(name, value, said):
    environ = {**STEP, name: value} if value is not None else {key: STEP[key] for key in STEP if key != name}
    message = refusal(facts_of, environ)
    assert re.search(f"{name}.*Start the processes with srun", message)
    assert said in message


def written(folder, content):
    file = folder / "hosts.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


def test_ranks_over_tcp_come_from_the_host_file(tmp_path):
    hosts = [["10.0.0.1:32323"], ["10.0.0.2:32324", "10.0.1.2:32325"], ["10.0.0.2:32326"]]
    environ = {"MLX_RANK": "2", "MLX_HOSTFILE": written(tmp_path, hosts)}
    assert place(environ) == (3, 2, 1, 2, "10.0.0.1", 32322)
    assert facts_of(environ).mlx_launch
    assert place({**environ, "MASTER_PORT": "999"})[-1] == 999


def test_ranks_over_rdma_come_from_the_devices(tmp_path):
    devices = written(tmp_path, [[None, "rdma_en5"], ["rdma_en5", None]])
    environ = {"MLX_RANK": "1", "MLX_IBV_DEVICES": devices, "MLX_JACCL_COORDINATOR": "10.0.0.1:32323"}
    assert place(environ) == (2, 1, 0, 1, "10.0.0.1", 32322)


def test_torchrun_goes_before_variables_that_were_left_behind(tmp_path):
    environ = {"MLX_RANK": "1", "MLX_HOSTFILE": written(tmp_path, [["a:1"], ["b:2"]]), "RANK": "0", "WORLD_SIZE": "4"}
    assert (place(environ)[:2], facts_of(environ).mlx_launch) == ((4, 0), False)


@pytest.mark.parametrize("content", ["", {}, [["10.0.0.1:32323"]]])
def test_one_process_of_mlx_launch_is_one_process(tmp_path, content):
    assert place({"MLX_RANK": "0", "MLX_HOSTFILE": written(tmp_path, content)}) == (None,) * 6


@pytest.mark.parametrize(
    ("content", "rank"), [("{", "0"), ([1, 2], "0"), ([["a:1"], ["b:2"]], "two"), ([["a:1"], ["b:2"]], "2")]
)
def test_other_variables_than_those_of_mlx_launch_are_refused(tmp_path, content, rank):
    environ = {"MLX_RANK": rank, "MLX_HOSTFILE": written(tmp_path, content)}
    assert "as mlx.launch sets it, but its other variables do not fit" in refusal(facts_of, environ)
