"""A process with the device begins, forks and ends like any other: without output and without an abort."""

import signal
import textwrap

import pytest

import tests
from tests import HUNG_AFTER

STEP = """
import os, sys, threading, time
from mps_trainer.simulator import activate
import torch

def step():
    layer = torch.nn.Linear(4, 4, device="mps")
    loss = layer(torch.ones(2, 4, device="mps")).square().sum()
    loss.backward()
    return loss, layer
"""


@pytest.fixture
def run_python(built):
    return lambda body, **environment: tests.run_python("-c", STEP + textwrap.dedent(body), **environment)


@pytest.fixture
def quiet(run_python):
    """Runs a program that must end without output."""

    def check(body: str, code: int = 0, **environment: str) -> None:
        result = run_python(body, **environment)
        assert (result.returncode, result.stdout, result.stderr) == (code, "", "")

    return check


def test_device_can_come_late_and_the_process_ends_quietly(quiet):
    """After backward on the CPU, which starts autograd's threads, and after torch has looked for mps in vain."""
    quiet("""
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    assert not torch.backends.mps.is_available() and not torch.mps.is_available()
    assert torch.accelerator.current_accelerator() is None
    torch.manual_seed(0)
    activate()
    assert torch.backends.mps.is_available()
    kept = [step() for _ in range(3)]  # tensors and graphs that outlive everything
    kept[0][0].item()
    (x * 2).sum().backward()
    """)


def test_error_in_the_middle_of_training_is_the_only_output(run_python):
    result = run_python("""
    activate()
    loss, layer = step()
    out = layer(torch.ones(1, 4, device="mps"))
    out.register_hook(lambda gradient: 1 / 0)
    out.sum().backward()
    """)
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("leave", ["sys.exit(3)", "os._exit(3)"])
def test_process_may_leave_in_the_middle_of_backward(quiet, leave):
    body = f"""
    activate()
    loss, layer = step()
    out = layer(torch.ones(1, 4, device="mps"))
    def leave(gradient):
        {leave}
    out.register_hook(leave)
    out.sum().backward()
    """
    quiet(body, code=3)


def test_interrupt_ends_training(run_python):
    result = run_python("""
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    activate()
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    while True:
        step()[0].item()
    """)
    assert result.returncode == -signal.SIGINT
    assert result.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "terminate" not in result.stderr


def test_process_waits_for_a_thread_that_trains_and_not_for_one_that_sleeps(quiet):
    quiet("""
    activate()
    def work(then):
        for _ in range(50):
            step()[0].item()
        time.sleep(then)
    threading.Thread(target=work, args=(60,), daemon=True).start()
    time.sleep(0.5)
    threading.Thread(target=work, args=(0,)).start()
    """)


def test_forked_children_end_quietly(quiet):
    """They do not wait for threads that are not there, which torch would do for as long as the variable says."""
    body = """
    activate()
    step()
    statuses = []
    for work in (lambda: torch.ones(3).sum().item(), lambda: torch.ones(3, device="mps").sum().item()):
        for leave in (sys.exit, os._exit):
            child = os.fork()
            if child == 0:
                work()
                leave(0)
            statuses.append(os.waitpid(child, 0)[1])
    assert statuses == [0] * 4, statuses
    step()
    """
    quiet(body, TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT=str(10 * HUNG_AFTER))


def test_forked_data_loader_workers_feed_training(quiet):
    quiet("""
    activate()
    data = torch.utils.data.TensorDataset(torch.ones(8, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, persistent_workers=True)
    _, layer = step()
    for _ in range(2):
        for (x,) in loader:
            layer(x.to("mps")).sum().backward()
    """)


def test_switch_for_the_fallback_is_read_from_the_environment(quiet, run_python):
    body = """
    import warnings
    warnings.simplefilter("ignore")
    activate()
    torch.linalg.eig(torch.eye(2, device="mps"))
    """
    quiet(body, PYTORCH_ENABLE_MPS_FALLBACK="1")
    refused = run_python(body, PYTORCH_ENABLE_MPS_FALLBACK="0")
    assert refused.returncode == 1
    assert "NotImplementedError: The operator 'aten::linalg_eig'" in refused.stderr


@pytest.mark.integration
def test_simulator_is_imported_without_transformers():
    code = "import sys, mps_trainer.simulator; assert 'transformers' not in sys.modules"
    assert tests.run_python("-c", code).returncode == 0
