"""A process with the device begins, forks and ends like any other: without output and without an abort."""

import json
import signal

import pytest

from tests import HUNG_AFTER, run_python

# Runs each program as a fork, which ends as the interpreter ends: an import of torch takes longer than all of them.
FORKS = """
import json, os, sys, threading, time
from mps_trainer.simulator import activate
import torch
assert "transformers" not in sys.modules  # the simulator does without

def step():
    layer = torch.nn.Linear(4, 4, device="mps")
    loss = layer(torch.ones(2, 4, device="mps")).square().sum()
    loss.backward()
    return loss, layer

statuses = {}
for name, program in json.loads(sys.argv[1]).items():
    if (pid := os.fork()) == 0:
        output = os.open(name, os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        break
    statuses[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
else:
    program = "print(json.dumps(statuses))"
exec(program)
"""

LATE = """
# After backward on the CPU, which starts autograd's threads, and after torch has looked for mps in vain.
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
"""

AFTER_FAKE_TENSORS = """
import logging
logging.disable()  # libraries log something when they are imported
from mps_trainer.tools.fit.fake_tensors import fake_mode, fake_of
with fake_mode():
    (fake_of(torch.ones(2, requires_grad=True)) * 2).sum().backward()
activate()
step()[0].item()
"""

IN_BACKWARD = """
activate()
loss, layer = step()
out = layer(torch.ones(1, 4, device="mps"))
out.register_hook(lambda gradient: {})
out.sum().backward()
"""

INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
activate()
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
while True:
    step()[0].item()
"""

THREADS = """
# The process waits for a thread that trains, and not for one that sleeps.
activate()
def work(then):
    for _ in range(50):
        step()[0].item()
    time.sleep(then)
threading.Thread(target=work, args=(60,), daemon=True).start()
time.sleep(0.5)
threading.Thread(target=work, args=(0,)).start()
"""

CHILDREN = f"""
# They do not wait for threads that are not there, which torch would do for as long as the variable says.
os.environ["TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT"] = "{10 * HUNG_AFTER}"
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

WORKERS = """
activate()
data = torch.utils.data.TensorDataset(torch.ones(8, 4))
loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, persistent_workers=True)
_, layer = step()
for _ in range(2):
    for (x,) in loader:
        layer(x.to("mps")).sum().backward()
"""

# Each program, its exit status, and the last words of what it prints.
PROGRAMS = {
    "the device comes late": (LATE, 0, ""),
    "the device comes after fake tensors": (AFTER_FAKE_TENSORS, 0, ""),
    "leaves in backward": (IN_BACKWARD.format("sys.exit(3)"), 3, ""),
    "leaves in backward at once": (IN_BACKWARD.format("os._exit(3)"), 3, ""),
    "fails in backward": (IN_BACKWARD.format("1 / 0"), 1, "ZeroDivisionError: division by zero\n"),
    "is interrupted": (INTERRUPTED, -signal.SIGINT, "KeyboardInterrupt\n"),
    "waits for threads": (THREADS, 0, ""),
    "has children": (CHILDREN, 0, ""),
    "has workers that load data": (WORKERS, 0, ""),
}


@pytest.mark.integration
def test_programs_print_their_own_errors_or_nothing(built, tmp_path):
    programs = json.dumps({name: program for name, (program, _, _) in PROGRAMS.items()})
    forks = run_python("-c", FORKS, programs, cwd=tmp_path)
    assert forks.returncode == 0, forks.stderr
    statuses = json.loads(forks.stdout)
    for name, (_, status, last) in PROGRAMS.items():
        printed = (tmp_path / name).read_text()
        assert (name, statuses[name]) == (name, status), printed
        assert printed.startswith("Traceback") if last else printed == ""
        assert printed.endswith(last)
        assert "terminate" not in printed
