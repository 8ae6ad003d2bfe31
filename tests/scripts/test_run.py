"""A script ends with the right status and words, and leaves nothing unfinished behind."""

import logging
import os
from types import SimpleNamespace

import pytest

from mps_trainer import MisconfigurationException, TrainingArguments
from mps_trainer.errors import CheckpointError, explain
from mps_trainer.scripts import run, set_up_logging


@pytest.fixture
def script(tmp_path, capsys, monkeypatch):
    """Runs a script that raises `error` in its `part`; gives status and stderr."""
    monkeypatch.delenv("MPS_TRAINER_TRACEBACK", raising=False)
    args = SimpleNamespace(output_dir=str(tmp_path / "out"))

    def run_it(error=None, part="do", before=lambda: None):
        def step(name, result):
            def take(*given):
                if name == part and error is not None:
                    before()
                    raise error
                return result

            return take

        status = run("train.py", step("parse", ("flags", args)), step("prepare", "job"), step("do", None))
        return status, capsys.readouterr().err

    return run_it


def explained(error):
    explain(error, "Row 3 cannot be read.")
    return error


def test_all_went_well(script):
    assert script() == (0, "")


@pytest.mark.parametrize("part", ["parse", "prepare", "do"])
def test_what_the_user_can_mend_is_one_line_and_2(script, part):
    assert script(MisconfigurationException("Give\nmore."), part) == (2, "train.py: error: Give more.\n")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CheckpointError("The disk is full."), 1, "train.py: error: The disk is full.\n"),
        (explained(OSError("gone")), 1, "train.py: error: OSError: gone. Row 3 cannot be read.\n"),
        (KeyboardInterrupt("Saved."), 130, "train.py: Saved.\n"),
        (
            KeyboardInterrupt(),
            130,
            "train.py: Interrupted. To continue from the newest checkpoint, if there is one, add "
            "--resume_from_checkpoint True to the command.\n",
        ),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseException) else "",
)
def test_what_ends_a_run_has_a_status_of_its_own(script, error, status, line):
    assert script(error) == (status, line)


def test_what_nobody_foresaw_is_a_line_before_training_and_a_traceback_after(script):
    status, errors = script(ZeroDivisionError("by zero"), "prepare")
    assert (status, len(errors.splitlines())) == (1, 1)
    assert "ZeroDivisionError: by zero." in errors
    with pytest.raises(ZeroDivisionError):
        script(ZeroDivisionError("by zero"), "do")


@pytest.mark.parametrize("part", ["prepare", "do"])
def test_an_output_folder_made_for_a_refused_run_is_removed_and_no_other(script, tmp_path, part):
    out = tmp_path / "out"
    script(MisconfigurationException("No."), part, before=lambda: os.makedirs(out, exist_ok=True))
    assert not out.exists()
    (out / "kept").mkdir(parents=True)
    script(MisconfigurationException("No."), part)
    assert (out / "kept").is_dir()


@pytest.mark.parametrize(("asked", "level"), [("error", logging.ERROR), ("info", logging.INFO)])
def test_the_log_has_the_level_that_was_asked_for(tmp_path, asked, level):
    package, library = logging.getLogger("mps_trainer"), logging.getLogger("transformers")
    before = package.level, library.level
    try:
        set_up_logging(TrainingArguments(output_dir=str(tmp_path), log_level=asked))
        assert (package.level, library.level) == (level, level)
    finally:
        package.setLevel(before[0])
        library.setLevel(before[1])


def test_one_of_several_processes_tells_that_it_was_interrupted(tmp_path, capsys, monkeypatch):
    def interrupted(job):
        raise KeyboardInterrupt

    said = []
    for rank in (0, 1):
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        args = SimpleNamespace(output_dir=str(tmp_path / "out"))
        assert run("train.py", lambda args=args: (args,), lambda given: given, interrupted) == 130
        said.append(capsys.readouterr().err)
    assert said[0].startswith("train.py: Interrupted.")
    assert said[1] == ""


def test_a_process_that_is_not_the_first_lets_that_one_speak_before_it_names_itself(script, monkeypatch):
    waited = []
    monkeypatch.setattr("mps_trainer.scripts.time.sleep", waited.append)
    refused = MisconfigurationException("Give more.")
    for rank, said in ((0, "train.py: error: Give more.\n"), (1, "train.py: process 1: error: Give more.\n")):
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        assert script(refused) == (2, said)
    assert len(waited) == 1
    assert waited[0] >= 1  # torchrun looks ten times a second whether one has ended


def test_a_process_that_does_not_log_shows_no_bars_and_no_warnings_of_the_script(tmp_path, monkeypatch):
    import datasets
    from transformers.utils import logging as of_transformers

    monkeypatch.delenv("HF_DATASETS_DISABLE_PROGRESS_BARS", raising=False)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    vars(args)["decision"] = SimpleNamespace(rank=1, local_rank=1, world_size=2)
    level, root = of_transformers.get_verbosity(), logging.getLogger().handlers[:]
    before = logging.getLogger().level
    try:
        set_up_logging(args)
        assert logging.getLogger("a_script").getEffectiveLevel() == logging.ERROR
        logging.getLogger().setLevel(before)
        args.log_level_replica = "info"
        set_up_logging(args)
        assert logging.getLogger("a_script").getEffectiveLevel() == before
        assert datasets.are_progress_bars_disabled()
        assert not of_transformers.is_progress_bar_enabled()
    finally:
        datasets.enable_progress_bars()
        of_transformers.enable_progress_bar()
        of_transformers.set_verbosity(level)
        logging.getLogger().handlers[:] = root
        logging.getLogger().setLevel(before)
