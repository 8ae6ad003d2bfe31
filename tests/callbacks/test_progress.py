"""The bars and the lines of a run."""

import fcntl
import functools
import os
import pty
import re
import struct
import sys
import termios
import threading
import time

import pytest
import torch
from transformers import PrinterCallback
from transformers.trainer_callback import ProgressCallback as TransformersProgressCallback

from mps_trainer.callbacks import ProgressCallback, progress_display
from tests.conftest import callback, examples

NUMBER = r"[\d.e+-]+"
INSIDE = rf"\[\d\d:\d\d<\d\d:\d\d, [\d,.]+ samples/s, {NUMBER} [MG]iB\]"


class Screen:
    """stdout and stderr are a terminal of `columns` from here on; `text` is what was written, after `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._terminal, self._bytes = ours, b""
        self._file = os.fdopen(theirs, "w", encoding="utf-8", buffering=1)
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(sys, "stdout", self._file)
        monkeypatch.setattr(sys, "stderr", self._file)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def end(self) -> str:
        self._file.flush()
        self._monkeypatch.undo()
        self._file.close()
        self._reader.join(10)
        os.close(self._terminal)
        self.text = self._bytes.decode().replace("\r\n", "\n")
        return self.text

    def drawn(self) -> list[str]:
        """Each thing that was written between two returns of the cursor, without what moves it."""
        return [re.sub(r"\x1b\[[A-Z]", "", part) for part in re.split(r"[\r\n]", self.text)]

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._terminal, 65536)
            except OSError:  # on Linux, that the other end is closed
                return
            if not piece:
                return
            self._bytes += piece


@pytest.fixture
def terminal(monkeypatch):
    """Makes one; a second one would need a test of its own."""
    monkeypatch.delenv("TERM", raising=False)

    return functools.partial(Screen, monkeypatch)


@pytest.fixture
def at_once(monkeypatch):
    """Lines and bars that otherwise wait a second, so that a short test has them."""
    monkeypatch.setattr(progress_display, "SHORTEST", 0.0)
    monkeypatch.setattr(progress_display, "_EVERY", 0.0)


def lines_of(capfd, begins="step"):
    return [line for line in capfd.readouterr().out.splitlines() if line.startswith(begins)]


def test_a_log_is_one_line_with_loss_rate_norm_time_left_throughput_and_memory(make_trainer, capfd):
    make_trainer(disable_tqdm=False, max_steps=4, logging_steps=2).train()
    captured = capfd.readouterr()
    lines = [line for line in captured.out.splitlines() if line.startswith("step")]
    pattern = (
        rf"step 2/4 \| epoch 0\.40 \| loss {NUMBER} \| lr {NUMBER} \| grad norm {NUMBER} \| "
        rf"\d\d:\d\d<\d\d:\d\d \| [\d,.]+ samples/s \| {NUMBER} [MG]iB"
    )
    assert re.fullmatch(pattern, lines[0])
    assert len(lines) == 3  # two logs and the summary
    assert "\r" not in captured.out + captured.err
    assert captured.err == ""


@pytest.mark.parametrize(("settings", "every"), [({"logging_strategy": "no"}, 3), ({"logging_steps": 2}, 2)], ids=str)
def test_training_says_at_each_tenth_without_a_log_how_far_it_is(make_trainer, capfd, at_once, settings, every):
    make_trainer(disable_tqdm=False, max_steps=30, **settings).train()
    *told, _ = lines_of(capfd)
    assert [line.split(" | ")[0] for line in told] == [f"step {step}/30" for step in range(every, 31, every)]
    assert all("samples/s" in line for line in told)


def test_an_evaluation_says_at_each_tenth_how_far_it_is(make_trainer, capfd, at_once):
    trainer = make_trainer(
        disable_tqdm=False, per_device_eval_batch_size=1, trainer={"eval_dataset": examples(40, seed=1)}
    )
    trainer.evaluate()
    told = lines_of(capfd, "evaluation")
    assert [line.split()[1] for line in told] == [f"{batch}/40" for batch in range(4, 41, 4)]
    assert re.fullmatch(rf"evaluation 4/40 \| \d\d:\d\d<\d\d:\d\d \| [\d,.]+ samples/s \| {NUMBER} [MG]iB", told[0])


def test_what_takes_less_than_a_second_writes_no_line(make_trainer, capfd):
    make_trainer(disable_tqdm=False, per_device_eval_batch_size=1).evaluate()
    assert lines_of(capfd, "evaluation") == []


@pytest.mark.parametrize(("kind", "columns"), [("dumb", 80), ("xterm", 0)])
def test_a_terminal_that_moves_no_cursor_or_has_no_columns_gets_lines(
    make_trainer, terminal, monkeypatch, kind, columns
):
    trainer = make_trainer(disable_tqdm=False, max_steps=4)
    screen = terminal(columns)
    monkeypatch.setenv("TERM", kind)
    trainer.train()
    text = screen.end()
    assert "\x1b" not in text
    assert "\r" not in text
    assert "step 4/4 |" in text


@pytest.mark.parametrize("no_color", [None, "1"])
def test_a_terminal_has_a_bar_with_time_left_throughput_and_memory_and_no_colour(
    make_trainer, terminal, monkeypatch, no_color, at_once
):
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    trainer = make_trainer(disable_tqdm=False, max_steps=8, eval_strategy="steps", eval_steps=4)
    screen = terminal()
    trainer.train()
    text = screen.end()
    assert any(re.search(rf"training  50%\|[^|]+\| 4/8 {INSIDE}", part) for part in screen.drawn())
    assert any(re.search(rf"evaluation  67%\|[^|]+\| 2/3 {INSIDE}", part) for part in screen.drawn())
    assert not re.search(r"\x1b\[[\d;]*m", text)
    assert re.search(rf"step 4/8 \| epoch 0\.80 \| loss {NUMBER} \| lr", text)


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_a_bar_is_never_wider_than_its_terminal(make_trainer, terminal, columns, at_once):
    trainer = make_trainer(disable_tqdm=False, max_steps=4, eval_strategy="epoch", num_train_epochs=1)
    screen = terminal(columns)
    trainer.train()
    screen.end()
    assert max(len(part) for part in screen.drawn() if re.search(r"\d+%", part)) <= columns


def test_evaluation_outside_a_run_has_a_bar_that_stays(make_trainer, terminal):
    trainer = make_trainer(disable_tqdm=False)
    screen = terminal()
    trainer.evaluate()
    trainer.predict(examples(16))
    assert re.search(r"evaluation 100%\|.*3/3.*\n.*evaluation 100%\|.*2/2", screen.end(), flags=re.DOTALL)


def test_a_stream_is_counted_in_batches(terminal, at_once):
    screen = terminal()
    bar = progress_display.Bar(8, torch.device("cpu"), None, desc="evaluation")
    bar.update(3)
    bar.close()
    assert re.search(rf"evaluation 3 batches \[\d\d:\d\d, [\d,.]+ samples/s, {NUMBER} [MG]iB\]", screen.end())


def test_a_bar_that_tqdm_is_told_to_leave_out_is_left_out(terminal):
    """As by TQDM_DISABLE=1, which is read when tqdm is imported."""
    screen = terminal()
    bar = progress_display.Bar(8, torch.device("cpu"), 2, desc="training", disable=True)
    bar.update()
    bar.leave_out(1.0)
    bar.write("a line")
    bar.close()
    assert screen.end() == "a line\n"


def test_time_that_went_into_evaluations_is_no_part_of_the_rate_but_of_the_time_left():
    lines = progress_display.Lines(8, torch.device("cpu"), 20)
    lines.start_t -= 40  # ten steps in ten seconds, and an evaluation
    lines.leave_out(30)
    lines.update(10)
    facts = lines.format_dict
    assert (facts["speed"], facts["clocks"]) == ("8.0 samples/s", "00:40<00:40")


def test_a_resumed_run_counts_what_it_does_itself(at_once):
    lines = progress_display.Lines(8, torch.device("cpu"), 20, initial=10)
    assert [lines.n for _ in range(10) if lines.update()] == [12, 14, 16, 18, 20]
    lines.start_t -= 20
    assert lines.format_dict["speed"] == "4.0 samples/s"


def test_an_evaluation_does_not_slow_down_the_rate_of_the_line_after_it(make_trainer, capfd):
    slow = callback(on_prediction_step=lambda **_: time.sleep(0.05))
    trainer = make_trainer(
        {"callbacks": [slow]}, disable_tqdm=False, max_steps=4, logging_steps=2, eval_strategy="steps", eval_steps=2
    )
    trainer.train()
    speeds = [re.search(r"([\d,.]+) samples/s", line) for line in lines_of(capfd) if "grad norm" in line]
    assert float(speeds[1][1].replace(",", "")) > 200  # 107 with it


def test_bar_is_replaced_by_plain_logs_when_it_is_switched_off(make_trainer, capfd):
    trainer = make_trainer(disable_tqdm=True, max_steps=1)
    trainer.train()
    captured = capfd.readouterr()
    assert captured.err == ""
    assert "'loss'" in captured.out
    assert "Training on" not in captured.out
    assert trainer.pop_callback(PrinterCallback) is not None


def test_transformers_name_of_the_callback_finds_it(make_trainer):
    trainer = make_trainer(disable_tqdm=False)
    assert isinstance(trainer.pop_callback(TransformersProgressCallback), ProgressCallback)
    assert trainer.pop_callback(ProgressCallback) is None


def test_only_the_first_of_several_processes_shows_anything(make_trainer, capfd):
    trainer = make_trainer(disable_tqdm=False)
    shown = trainer.pop_callback(ProgressCallback)
    trainer.state.is_world_process_zero = False
    told = (trainer.args, trainer.state, trainer.control)
    shown.on_train_begin(*told, model=trainer.model)
    shown.on_step_end(*told)
    shown.on_prediction_step(*told, eval_dataloader=trainer.get_eval_dataloader())
    shown.on_log(*told, logs={"loss": 1.0})
    shown.on_evaluate(*told)
    shown.on_train_end(*told)
    assert capfd.readouterr() == ("", "")


def test_a_step_reads_no_memory_and_writes_nothing_by_itself(make_trainer, capfd, monkeypatch):
    """Only what draws or writes does."""
    looked = []
    monkeypatch.setattr(progress_display, "memory_in_use", looked.append)
    monkeypatch.setattr("mps_trainer.callbacks.progress.memory_in_use", looked.append)
    make_trainer(disable_tqdm=False, max_steps=40, logging_steps=20).train()
    assert len(looked) < 10


def test_bars_read_nothing_from_the_device(mps, make_trainer, terminal, at_once):
    def reads(shown):
        trainer = make_trainer(
            disable_tqdm=not shown, max_steps=8, logging_steps=4, eval_strategy="steps", eval_steps=4
        )
        before = mps.counters()["blocking_reads"]
        trainer.train()
        return mps.counters()["blocking_reads"] - before

    quiet = reads(shown=False)
    screen = terminal()
    drawn = reads(shown=True)
    assert re.search(r"training  50%\|.* samples/s, [\d.,]+ (KiB|bytes)\]", screen.end())
    assert drawn == quiet


def test_a_run_of_no_steps_shows_no_progress(make_trainer):
    assert make_trainer(num_train_epochs=0, disable_tqdm=False).train().global_step == 0


def test_lines_leave_the_bars_of_others_alone():
    lines = progress_display.Lines(8, torch.device("cpu"), 10)
    assert lines not in progress_display.Lines._instances
    lines.close()
    assert progress_display.Lines(8, torch.device("meta"), 10).format_dict["facts"].endswith("? samples/s")
