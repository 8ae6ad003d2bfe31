"""Names what each process waits for when a collective fails.

A collective that fails says which connection failed, not which process stayed away or waits in another collective.
Each process therefore has a thread that asks the launcher's store, once a second, whether somebody misses anyone, and
answers where its main thread is. The exchange of tensors may be broken by then; the store is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from ..errors import AnotherProcessFailedError, DifferentExchangesError, explain, explanation_of
from ..utils.text import sentence

EVERY = 1.0  # seconds between two looks at the store
PATIENCE = 5.0  # seconds that a process has to answer
WAITS, WORKS = "waits", "works"
ENDED = "it has ended; its last output says why"
# what gloo, the store and nccl say of one that is not there
_SIGNS = (
    "gloo/",
    "gloo::",
    "Application timeout caused pair closure",
    "Wait timeout",
    "Operation timed out!",
    "Connection closed by peer",
    "Connection reset by peer",
    "ProcessGroupNCCL",
)
# where one is that waits for others: in torch's collectives, a replica's exchange of buffers, or what calls them here
_COLLECTIVES = (
    os.path.join("torch", "distributed", ""),
    os.path.join("torch", "nn", "parallel", "distributed.py"),
    *(os.path.join("mps_trainer", "distributed", name) for name in ("processes.py", "group.py")),
)
_BACKWARD = os.path.join("torch", "autograd", "graph.py")  # where gradients are computed, and exchanged as well
# The methods of the Trainer and its loop in which processes wait for each other; the first one that applies is named.
_PURPOSES = {
    "_save_checkpoint": "a checkpoint",
    "evaluation_loop": "an evaluation",
    "log": "a log",
    "get_batch_samples": "the batches of a step",
    "training_step": "the loss and gradients of a batch",
    "_clip_grad_norm": "the norm of the gradients",
    "finish": "the end of training",
    "end_epoch": "the end of an epoch",
    "log_evaluate_save": "the end of a step",
}

_own: RankMonitor | None = None


class RankMonitor:
    """Answers the questions of other processes until this process leaves the group.

    Args:
        store: of torch.distributed, that all processes reach, by a connection of its own.
        rank: of this process.
        size: how many there are.
        keeper: whose the store is: "process 0", with which it ends, or "torchrun".
    """

    def __init__(self, store: Any, rank: int, size: int, keeper: str) -> None:
        self.store, self.rank, self.size, self.keeper = store, rank, size, keeper
        self._waited_for: str | None = None  # once a collective has failed here
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="attendance", daemon=True)

    def begin(self) -> None:
        self.store.set(f"who/{self.rank}", f"pid {os.getpid()} on {socket.gethostname()}")
        self._thread.start()

    def end(self) -> None:
        """Announces that this process leaves the group, and stops asking others."""
        self._ended.set()
        self._thread.join(4 * EVERY)  # a store that does not answer keeps the thread, and nobody else

    def ask(self, waited_for: str) -> tuple[dict[int, str], dict[int, str]] | None:
        """Returns who stayed away and what the others wait for, by rank; None if the store does not answer."""
        self._waited_for = waited_for
        found: list[tuple[dict[int, str], dict[int, str]]] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                found.append(self._ask())

        asking = threading.Thread(target=ask, daemon=True)  # some questions to the store know no timeout
        asking.start()
        asking.join(PATIENCE + 2 * EVERY)
        return found[0] if found else None

    def _ask(self) -> tuple[dict[int, str], dict[int, str]]:
        absent, waiting, answers = {}, {}, self._asked()
        for rank in range(self.size):
            state, place = answers.get(rank, ("", ""))
            if state == WAITS:
                waiting[rank] = f"{self._who(rank)} for {place}"
            else:
                why = f"it is in {place}" if state == WORKS else self._silence(rank)
                absent[rank] = f"{self._who(rank)}: {why}"
        return absent, waiting

    def _asked(self) -> dict[int, tuple[str, str]]:
        """Returns the answers of the processes that give one."""
        number = self.store.add("asked", 1)
        answers: dict[int, tuple[str, str]] = {}
        until = time.monotonic() + PATIENCE
        while len(answers) < self.size and time.monotonic() < until:
            for rank in range(self.size):
                if rank not in answers and self.store.check([f"answer/{number}/{rank}"]):
                    answers[rank] = json.loads(self.store.get(f"answer/{number}/{rank}"))
            time.sleep(EVERY / 10)
        return answers

    def _who(self, rank: int) -> str:
        known = self.store.check([f"who/{rank}"])
        return f"process {rank}" + (f" ({self.store.get(f'who/{rank}').decode()})" if known else "")

    def _silence(self, rank: int) -> str:
        if self.store.check([f"gone/{rank}"]):
            return ENDED
        return "it does not answer, and is stopped, dead, or stuck outside of Python"

    def _attend(self) -> None:
        with contextlib.suppress(Exception):  # whoever keeps the store may end at any time
            self._answer()
            self.store.set(f"{'gone' if self._ended.is_set() else 'heard'}/{self.rank}", "")
            if self.keeper == f"process {self.rank}":
                self._let_others_end()

    def _answer(self) -> None:
        answered = 0
        while not self._ended.wait(EVERY) and not self.store.check(["closed"]):
            asked = self.store.add("asked", 0)
            for number in range(answered + 1, asked + 1):
                self.store.set(f"answer/{number}/{self.rank}", json.dumps(self._state()))
            answered = asked

    def _let_others_end(self) -> None:
        """Waits for the others, because torch prints an error about a store that goes away while it is asked."""
        self.store.set("closed", "")
        until = time.monotonic() + 3 * EVERY

        def has_left(rank: int) -> bool:
            return any(self.store.check([f"{how}/{rank}"]) for how in ("gone", "heard"))

        while not all(map(has_left, range(self.size))) and time.monotonic() < until:
            time.sleep(EVERY / 20)

    def _state(self) -> tuple[str, str]:
        if self._waited_for is not None:
            return WAITS, self._waited_for
        main = threading.main_thread().ident
        frame = None if main is None else sys._current_frames().get(main)
        if frame is None:
            return WORKS, "no known line of Python"
        calls = list(traceback.walk_stack(frame))
        path = frame.f_code.co_filename
        is_waiting = path.endswith(_BACKWARD) or any(folder in path for folder in _COLLECTIVES)
        return (WAITS, _purpose(calls)) if is_waiting else (WORKS, _place(*calls[0]))


def _purpose(calls: Iterable[tuple[FrameType, int]]) -> str:
    """Returns what a thread waits for, from its calls, the innermost first."""
    inner = (*_COLLECTIVES, _BACKWARD)
    callers = [call for call in calls if not any(part in call[0].f_code.co_filename for part in inner)]
    names = {frame.f_code.co_name for frame, _ in callers}
    purpose = next((purpose for name, purpose in _PURPOSES.items() if name in names), "others")
    return f"{purpose} in {_place(*callers[0])}" if callers else purpose


def _place(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}, line {line})"


def attend(rank: int, size: int, restarts: int) -> None:
    """Answers from now on, if the process group has a store that can be asked."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    global _own
    with contextlib.suppress(Exception):  # without it, a failure is told as torch tells it
        # a connection of its own: on another thread's, a question that waits would keep this one from answering
        store: Any = distributed_c10d._get_default_store()
        own = dist.PrefixStore(f"attendance-{restarts}", store.clone())
        is_launchers = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        attending = RankMonitor(own, rank, size, "torchrun" if is_launchers else "process 0")
        attending.begin()
        _own = attending


def leave() -> None:
    global _own
    if _own is not None:
        _own.end()
        _own = None


@contextlib.contextmanager
def absent_named(doing: str | Callable[[], str]) -> Iterator[None]:
    """Adds to the error of an exchange inside which processes did not arrive, or what each of them waits for.

    Args:
        doing: what the others did not come to, as words, or what gives them when it has happened.
    """
    try:
        yield
    except Exception as error:
        if _own is not None and explanation_of(error) is None and _is_of_another(error):
            said = _said(_own, doing() if callable(doing) else doing, error)
            explain(error, f"{said} ({sentence(error, 200)})")
        raise


def _said(own: RankMonitor, doing: str, error: Exception) -> str:
    found = own.ask(_purpose(reversed(list(traceback.walk_tb(error.__traceback__)))))
    if found is None:
        return (
            f"Process {own.rank} of {own.size} waited in vain for another in {doing}, and {own.keeper}, which keeps "
            f"what could tell which one, does not answer. Look whether {own.keeper} hangs, was stopped or has died."
        )
    absent, waiting = found
    on = "start again: a run with resume_from_checkpoint goes on from the last checkpoint."
    if not absent:
        return (
            f"The {own.size} processes wait for different things before {doing} can go on: "
            f"{'; '.join(waiting.values())}. All have to make the same exchanges in the same order: a callback that "
            "stops, saves or evaluates has to do so in every process, and all need the same arguments and as many "
            f"batches. Correct what differs, and {on}"
        )
    told = f"Of {own.size} processes, these did not come to {doing}: {'; '.join(absent.values())}."
    if all(said.endswith(ENDED) for said in absent.values()):
        return f"{told} Fix that, and {on}"
    keeps = "Find out what keeps them there (py-spy dump --pid PID), raise ddp_timeout if they need longer, or"
    return f"{told} {keeps} {on}"


def _is_of_another(error: Exception) -> bool:
    """Returns True if the communication between processes failed, not a computation of this one."""
    import torch.distributed as dist

    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError, DifferentExchangesError)):
        return True
    # what nccl itself finds wrong, such as two processes on one GPU, is of this one
    has_sign = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
    return has_sign and not isinstance(error, AnotherProcessFailedError)
