"""Runs the writing of a checkpoint in the background of training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_THREAD = "mps_trainer checkpoint"
T = TypeVar("T")


class Background(Generic[T]):
    """Runs one task at a time in a thread. An error of the task is raised when its result is requested.

    The thread ends with the process, whatever it is doing: what it writes must not matter until it is finished.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: T | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], T]) -> None:
        """Starts `work` after the previous task has ended."""
        self.wait()

        def run() -> None:
            try:
                self._result = work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name=_THREAD, daemon=True)
        self._thread.start()

    def wait(self) -> T | None:
        """Waits until the task ends and returns its result, once.

        Raises:
            BaseException: what the task raised, once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        result, error, self._result, self._error = self._result, self._error, None, None
        if error is not None:
            raise error
        return result

    def poll(self) -> T | None:
        """Returns the result of a finished task or raises its error; does not wait for a running one."""
        return self.wait() if self._thread is not None and not self._thread.is_alive() else None

    @staticmethod
    def wait_for_all() -> None:
        """Waits for all tasks of this process. An interrupted run leaves its task behind."""
        for thread in threading.enumerate():
            if thread.name == _THREAD:
                thread.join()
