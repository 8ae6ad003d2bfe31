"""A script ends with the right status and words, and leaves nothing unfinished behind."""

import logging
from types import SimpleNamespace

import pytest

from mps_trainer import MisconfigurationException, TrainingArguments
from mps_trainer.errors import CheckpointError, explain
from mps_trainer.scripts import (
    checkpoint_to_resume,
    no_empty_folder_left,
    one_line_errors,
    one_line_import_errors,
    set_up_logging,
)
from tests.conftest import refusal


@pytest.fixture
def script(capsys, monkeypatch):
    monkeypatch.delenv("MPS_TRAINER_TRACEBACK", raising=False)

    def run_it(error=None):
        @one_line_errors("train.py")
        def main():
            if error is not None:
                raise error

        return main(), capsys.readouterr().err

    return run_it


INTERRUPTED = "train.py: Interrupted. To continue from the newest checkpoint, if there is one, add "


def explained(error):
    explain(error, "Row 3 cannot be read.")
    return error


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (None, 0, ""),
        (MisconfigurationException("Give\nmore."), 2, "train.py: error: Give more.\n"),
        (CheckpointError("The disk is full."), 1, "train.py: error: The disk is full.\n"),
        (
            ModuleNotFoundError("No module named 'sklearn.metrics'", name="sklearn.metrics"),
            1,
            "train.py: error: No module named 'sklearn.metrics'. Run: python -m pip install 'mps_trainer[examples]'\n",
        ),
        (explained(OSError("gone")), 1, "train.py: error: OSError: gone. Row 3 cannot be read.\n"),
        (KeyboardInterrupt("Saved."), 130, "train.py: Saved.\n"),
        (KeyboardInterrupt(), 130, INTERRUPTED + "--resume_from_checkpoint True to the command.\n"),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseException) else "",
)
def test_what_ends_a_run_has_a_status_of_its_own(script, error, status, line):
    assert script(error) == (status, line)


def test_a_missing_package_at_the_top_of_a_script_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended, one_line_import_errors("train.py"):
        raise ModuleNotFoundError("No module named 'trl'", name="trl")
    assert ended.value.code == 1
    line = "train.py: error: No module named 'trl'. Run: python -m pip install 'mps_trainer[libraries]'\n"
    assert capsys.readouterr().err == line
    with pytest.raises(ModuleNotFoundError), one_line_import_errors("train.py"):
        raise ModuleNotFoundError("No module named 'mine'", name="mine")


def test_unforeseen_error_keeps_its_traceback(script):
    with pytest.raises(ZeroDivisionError):
        script(ZeroDivisionError("by zero"))
    with pytest.raises(ModuleNotFoundError):  # a module of the user
        script(ModuleNotFoundError("No module named 'helper'", name="helper"))


def test_an_output_folder_made_for_a_refused_run_is_removed_and_no_other(tmp_path):
    out = tmp_path / "out"

    def refuse():
        with no_empty_folder_left(str(out)):
            out.mkdir(exist_ok=True)
            raise MisconfigurationException("No.")

    refusal(refuse)
    assert not out.exists()
    (out / "kept").mkdir(parents=True)
    refusal(refuse)
    assert (out / "kept").is_dir()


def test_run_resumes_from_the_output_folder_unless_told_otherwise(tmp_path, capsys):
    def resume(**settings):
        return checkpoint_to_resume(TrainingArguments(str(tmp_path / "out"), use_cpu=True, **settings))

    assert resume() is None
    (tmp_path / "out" / "checkpoint-3").mkdir(parents=True)
    assert resume() is True
    assert "Resuming from the newest checkpoint" in capsys.readouterr().out
    assert resume(overwrite_output_dir=True) is None
    assert resume(resume_from_checkpoint="other/checkpoint-7") == "other/checkpoint-7"
    (tmp_path / "out" / "checkpoint-3").rename(tmp_path / "out" / "tmp-checkpoint-3")  # a killed run left it
    assert resume() is None
    (tmp_path / "out" / "thesis.txt").touch()
    assert "has no checkpoint to resume from" in refusal(resume)


@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_processes_the_first_speaks_first(script, monkeypatch, rank):
    waited = []
    monkeypatch.setattr("mps_trainer.scripts.time.sleep", waited.append)
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    number = "process 1: " if rank else ""
    assert script(MisconfigurationException("Give more.")) == (2, f"train.py: {number}error: Give more.\n")
    assert all(seconds >= 1 for seconds in waited)  # torchrun looks ten times a second whether one has ended
    assert len(waited) == rank
    status, said = script(KeyboardInterrupt())
    assert (status, said.startswith("train.py: Interrupted."), said == "") == (130, rank == 0, rank == 1)


def test_the_level_is_the_one_asked_for_and_a_process_that_does_not_log_shows_no_bars_and_no_warnings(
    tmp_path, monkeypatch, caplog
):
    import datasets
    from transformers.utils import logging as of_transformers

    monkeypatch.delenv("HF_DATASETS_DISABLE_PROGRESS_BARS", raising=False)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, log_level="info")
    package, root = logging.getLogger("mps_trainer"), logging.getLogger()
    for logger in (package, root, logging.getLogger("transformers")):
        caplog.set_level(logger.level, logger.name)  # the fixture sets it again after the test
    level, handlers = root.level, root.handlers[:]
    try:
        set_up_logging(args)
        assert (package.level, of_transformers.get_verbosity(), root.level) == (logging.INFO, logging.INFO, level)
        vars(args)["decision"] = SimpleNamespace(rank=1, local_rank=1, world_size=2)
        set_up_logging(args)
        assert logging.getLogger("a_script").getEffectiveLevel() == logging.ERROR
        root.setLevel(level)
        args.log_level_replica = "error"
        set_up_logging(args)
        assert (package.level, of_transformers.get_verbosity(), root.level) == (logging.ERROR, logging.ERROR, level)
        assert datasets.are_progress_bars_disabled()
        assert not of_transformers.is_progress_bar_enabled()
    finally:
        datasets.enable_progress_bars()
        of_transformers.enable_progress_bar()
        root.handlers[:] = handlers
