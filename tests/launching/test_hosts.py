"""Tests `mps-trainer launch --hosts`: processes here, and over a program named ssh that runs its command here."""

import importlib.util
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from mps_trainer import cli
from mps_trainer.launching import hosts
from tests import HUNG_AFTER
from tests.conftest import refusal

SSH = f"""#!{sys.executable}
import os, pty, sys
assert sys.argv[-2].startswith("mac"), sys.argv
if sys.argv[-2] == "mac9.local":
    sys.exit(255)
sys.exit(os.waitstatus_to_exitcode(pty.spawn(["/bin/sh", "-c", sys.argv[-1]])))
"""
SCRIPT = """\
import json, os, sys, time
rank = os.environ["RANK"]
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "ACCELERATE_MIXED_PRECISION")
names += ("MPS_TRAINER_COMMAND", "SECRET")
with open(f"{rank}.json.part", "w") as file:
    json.dump([sys.argv[2:], os.isatty(0), *map(os.environ.get, names)], file)
os.rename(f"{rank}.json.part", f"{rank}.json")
if sys.argv[1] == "wait":
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(int(rank))  # the second process takes longer to save
        open(f"{rank}.saved", "w").close()
        sys.exit(130)
if sys.argv[1] == rank:
    sys.exit(7)
if sys.argv[1] != "end":
    time.sleep(60)
"""

DEAF = f"""\
import os, signal, sys, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open("deaf", "w").close()
    time.sleep({HUNG_AFTER})
while not os.path.exists("deaf"):
    time.sleep(0.1)
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def mlx_found(monkeypatch):
    """The scripts here exchange nothing, so that they run without MLX."""
    plain = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name == "mlx" or plain(name, *rest))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder with spaces in its name, a script and a program ssh, for a user without settings."""
    here = tmp_path / "my folder"
    (here / "bin").mkdir(parents=True)
    ssh = here / "bin" / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    (here / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(here)
    for name in ("HF_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.setenv("SECRET", "kept here")
    return here


@pytest.fixture
def network(monkeypatch):
    known = {f"mac{number}.local": f"10.0.0.{number}" for number in (1, 2, 3, 9)}
    monkeypatch.setattr(hosts.socket, "getaddrinfo", lambda host, *_: [(0, 0, 0, "", (known[host], 0))])
    monkeypatch.setattr(hosts, "_is_of_this_machine", lambda address: address == "10.0.0.1")


def seen(folder, rank):
    return json.loads((folder / f"{rank}.json").read_text())


@pytest.mark.integration
def test_each_machine_gets_its_rank_the_arguments_and_the_settings(folder, network):
    command = "launch --mixed_precision bf16 --hosts mac1.local,user@mac2.local train.py"
    (folder / "bin" / "ssh").write_text(SSH.replace('"mac"', '"user@mac"'))
    assert cli.main([*command.split(), "end", "it's", "--x=a b"]) == 0
    shared = ["2", "0", "1", "10.0.0.1", "bf16", command]
    assert seen(folder, 0) == [["it's", "--x=a b"], False, *shared, "kept here"]
    assert seen(folder, 1)[:-1] == [["it's", "--x=a b"], True, *shared]


@pytest.mark.integration
def test_processes_on_the_loopback_interface_need_no_ssh(folder):
    (folder / "bin" / "ssh").write_text("#!/bin/sh\nexit 255\n")
    assert cli.main(["launch", "--hosts", "127.0.0.1,localhost", "-m", "train", "end"]) == 0
    assert [seen(folder, rank)[2:6] for rank in (0, 1)] == [["2", str(rank), "2", "127.0.0.1"] for rank in (0, 1)]


@pytest.mark.integration
@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_ends_the_others_and_is_named(folder, network, capfd, rank):
    start = time.monotonic()
    assert cli.main(["launch", "--hosts", "mac1.local,mac2.local", "train.py", str(rank)]) == 7
    assert time.monotonic() - start < 20
    host = f"mac{rank + 1}.local"
    line = f"mps-trainer: process {rank} of 2, on {host}, ended with status 7, which ended the run."
    assert capfd.readouterr().err.splitlines()[-1] == line


@pytest.mark.integration
def test_a_machine_that_ssh_does_not_reach_is_named(network, capfd):
    assert cli.main(["launch", "--hosts", "mac1.local,mac9.local", "train.py", "wait"]) == 255
    assert capfd.readouterr().err.endswith("which ended the run. Try `ssh mac9.local true`.\n")


@pytest.mark.integration
@pytest.mark.parametrize(("signum", "saved"), [(signal.SIGINT, "01"), (signal.SIGTERM, "1"), (signal.SIGHUP, "")])
def test_a_signal_reaches_each_process_and_waits_for_it(folder, network, capfd, signum, saved):
    """SIGTERM ends this script here at once; on the other machine it arrives as Ctrl-C. SIGHUP ends both."""

    def interrupt():
        while not all((folder / f"{rank}.json").exists() for rank in (0, 1)):
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(os.getpid(), signum)

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    threading.Thread(target=interrupt, daemon=True).start()
    assert cli.main(["launch", "--hosts", "mac1.local,mac2.local", "train.py", "wait"]) == 128 + signum
    assert sorted(each.stem for each in Path(folder).glob("*.saved")) == list(saved)
    assert "ended with status" not in capfd.readouterr().err
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


@pytest.mark.integration
def test_a_process_that_does_not_end_is_killed(folder, network, monkeypatch):
    monkeypatch.setattr(hosts, "_GRACE", 1.0)
    (folder / "train.py").write_text(DEAF)
    assert cli.main(["launch", "--hosts", "mac1.local,mac2.local", "train.py"]) == 3


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["127.0.0.1", "no such host"], r"--hosts: 'no such host' has no address \(.*such as mac1.local,mac2.local"),
        (["127.0.0.1", ""], "--hosts: '' has no address"),
        (["mac1.local"], "--hosts mac1.local names one machine. Name two or more"),
        (["127.0.0.1", "10.0.0.2"], "--hosts: '127.0.0.1' is a loopback address, which the other machines cannot"),
    ],
)
def test_names_that_no_run_can_use_are_refused(names, says):
    assert re.match(says, refusal(hosts.addresses_of, names))
    assert hosts.addresses_of(["127.0.0.1", "127.0.0.1"]) == ["127.0.0.1", "127.0.0.1"]


def test_without_mlx_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["launch", "--hosts", "127.0.0.1,127.0.0.1", "train.py"]) == 2
    assert "python -m pip install 'mps_trainer[several-macs]'" in capsys.readouterr().err


def test_hosts_and_a_number_of_processes_exclude_each_other(capsys):
    assert cli.main(["launch", "--hosts", "mac1.local,mac2.local", "--num_processes", "2", "train.py"]) == 2
    assert capsys.readouterr().err.startswith("mps-trainer: error: --num_processes 2: 2 processes and --hosts exclude")
