"""`mps-trainer report`."""

import os

import pytest

from mps_trainer.cli import main
from tests import run_python


def test_the_page_of_a_run_is_made_again(recorded, capsys):
    folder = recorded()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    assert "<h1>glue" in (folder / "report.html").read_text()
    assert main(["report", str(folder)]) == 0  # over its own page


def test_several_runs_are_compared_in_the_current_folder(recorded, capsys, monkeypatch, tmp_path):
    folders = [str(recorded(name, name=name)) for name in ("a", "b")]
    monkeypatch.chdir(tmp_path)
    assert main(["report", *folders]) == 0
    assert capsys.readouterr().out == "comparison.html\n"
    assert "<h1>2 runs</h1>" in (tmp_path / "comparison.html").read_text()
    assert not os.path.exists(os.path.join(folders[0], "report.html"))
    assert main(["report", *folders, "--output", "other.html"]) == 0
    assert os.path.exists(tmp_path / "other.html")


NO_RUN = "it has no run_record.json, no trainer_state.json and no checkpoint"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--output", ""], "--output '' names no file. Name one, or leave --output out."),
        (["gone"], "gone does not exist. Name the output_dir of a training run."),
        (["empty"], "There is no training run in empty: "),
        (["."], f"There is no training run in .: {NO_RUN}. Name the output_dir of a run, such as ./damaged."),
        (["mine.html"], "mine.html is a file. Name the output_dir of a training run."),
        (["run", "--output", "mine.html"], "mine.html was not written by mps_trainer, and is kept."),
        (["run", "--output", "gone/page.html"], "gone/page.html cannot be written: No such file or directory."),
        (["damaged"], "damaged/run_record.json cannot be read: Expecting property name enclosed in "),
        (["odd"], "odd/report.html was not written: no report can be made of odd/run_record.json (TypeError: "),
        ([], "the following arguments are required: OUTPUT_DIR. See"),
    ],
)
def test_what_is_wrong_is_a_line_and_2(recorded, capsys, monkeypatch, tmp_path, words, says):
    recorded()
    recorded("odd", data={"padded": 3})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run_record.json").write_text("{")
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    assert main(["report", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mps-trainer: error: {says}")
    assert said.count("\n") == 1
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"


@pytest.mark.integration
def test_torch_is_not_loaded_for_it(recorded):
    command = f"main(['report', {str(recorded())!r}])"
    code = f"import sys; from mps_trainer.cli import main; {command}; print('torch' in sys.modules)"
    done = run_python("-c", code)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_without_pygal_the_remedy_is_told(recorded, capsys, without_pygal):
    assert main(["report", str(recorded())]) == 2
    assert "pip install pygal" in capsys.readouterr().err
