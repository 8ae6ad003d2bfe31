"""A run whose output cannot be written: its reader is gone, or the stream was closed."""

import logging
import os
import signal
import subprocess
import sys

import pytest
from transformers import TrainerCallback

from mps_trainer.checkpoints.folders import find_checkpoints
from tests import HUNG_AFTER
from tests.conftest import accuracy, callback
from tests.guards.test_signals import default_handlers  # noqa: F401
from tests.utils.test_terminal import without_reader

SETTINGS = {
    "max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2
}  # fmt: skip


def closed():
    stream = without_reader()
    stream.close()
    return stream


class Chatty(TrainerCallback):
    """Writes at every event, as users' callbacks do."""

    def on_log(self, args, state, control, **kwargs):
        print("a log", flush=True)
        print("a log", file=sys.stderr)
        logging.getLogger("chatty").warning("a log")

    on_step_end = on_evaluate = on_save = on_train_begin = on_train_end = on_prediction_step = on_log


@pytest.mark.parametrize("stream", [without_reader, closed, lambda: None], ids=["no reader", "closed", "none"])
def test_a_run_trains_to_its_end_without_output(make_trainer, monkeypatch, stream):
    streams = {name: stream() for name in ("stdout", "stderr")}
    for name, value in streams.items():
        monkeypatch.setattr(sys, name, value)

    def chatty(output):
        print("metrics", flush=True)
        return accuracy(output)

    trainer = make_trainer({"callbacks": [Chatty()], "compute_metrics": chatty}, disable_tqdm=False, **SETTINGS)
    assert trainer.train().global_step == 4
    saved = [os.path.basename(path) for path in find_checkpoints(trainer.args.output_dir)]
    assert saved == ["checkpoint-2", "checkpoint-4"]
    assert {name: getattr(sys, name) for name in streams} == streams
    for value in streams.values():
        if value is not None:
            value.close()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("own", [False, True], ids=["stdout", "a stream of the callback's own"])
def test_a_signal_that_ends_the_reader_too_is_followed_by_a_save(make_trainer, monkeypatch, signum, own):
    stream = without_reader()

    def kill(state, **_):
        """Until then there is a reader."""
        if state.global_step == 3:
            monkeypatch.setattr(sys, "stdout", stream)
            os.kill(os.getpid(), signum)

    def tell(state, **_):
        if state.global_step == 3:
            print("a log", file=stream if own else sys.stdout, flush=True)

    trainer = make_trainer({"callbacks": [callback(on_step_end=kill, on_log=tell)]}, **{**SETTINGS, "max_steps": 12})
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # taken back after the test
    with pytest.raises((KeyboardInterrupt, SystemExit)) as ended:
        trainer.train()
    assert os.path.basename(find_checkpoints(trainer.args.output_dir)[-1]) == "checkpoint-3"
    assert signum != signal.SIGINT or "and saved" in str(ended.value)


GLUE = (
    "examples/text-classification/run_glue.py --task_name mrpc --embedded --do_train --do_eval --max_steps 12 "
    "--logging_steps 1 --use_cpu --output_dir"
)


@pytest.mark.integration
@pytest.mark.parametrize(
    "ends",
    [
        "| head -1",
        ">&- 2>&-",
        pytest.param("> >(exit 0) 2> >(exit 0)", marks=pytest.mark.acceptance),
    ],
)
def test_the_example_trains_to_its_end_whoever_reads(tmp_path, ends):
    command = f"set -o pipefail; {sys.executable} {GLUE} {tmp_path}/out {ends}"
    here = {"env": {**os.environ, "PYTHONPATH": os.getcwd()}, "timeout": HUNG_AFTER}
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, **here)
    assert (result.returncode, "BrokenPipe" in result.stderr) == (0, False), result.stderr
    assert (tmp_path / "out" / "checkpoint-12").is_dir()
    assert (tmp_path / "out" / "eval_results.json").is_file()
