"""Bad input ends in one line, exit status 2, and an output folder that nobody touched."""

import json
import os
import subprocess
import sys
import time

import pytest

from .conftest import EMBEDDED, EXAMPLE, ROOT

MRPC = EMBEDDED / "data/MRPC"
HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


@pytest.fixture
def refused(run_glue, out):
    """Runs the script and gives the one line in which it says why it did nothing."""

    def run(*arguments, **settings):
        status, _, errors = run_glue(*arguments, **settings)
        lines = errors.strip().splitlines()
        assert status == 2
        assert len(lines) == 1, errors
        assert lines[0].startswith("run_glue.py: error: ")
        assert not out.exists()
        return lines[0]

    return run


@pytest.fixture
def data(tmp_path):
    """Makes a folder of TSV files, or one file, from texts."""

    def make(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("_", ".")
            path.write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task_name", "snli"], "task_name='snli' is no GLUE task. Tasks are cola, mnli"),
        (["--embedded"], "--embedded and --data_dir need --task_name"),
        ([], "There is nothing to train on. Give --task_name"),
        (["--task_name", "mrpc", "--data_dir", MRPC], "--model_name_or_path is missing"),
        (["--task_name", "mrpc", "--embedded", "--data_dir", MRPC], "two sources of data"),
        (["--task_name", "mrpc", "--data_dir", MRPC, "--model_name_or_path", EMBEDDED], "Nothing is asked for"),
        (["--task_name", "mrpc", "--embedded", "--learning_rate", "-1"], "learning_rate=-1.0 is not accepted"),
        (["--task_name", "mrpc", "--embedded", "--num_train_epochs", "nan"], "num_train_epochs=nan is not accepted"),
        (["--task_name", "mrpc", "--embedded", "--max_seq_length", "0"], "max_seq_length=0 is not accepted"),
        (["--task_name", "mrpc", "--embedded", "--fp16", "--bf16"], "fp16=True and bf16=True exclude each other"),
        (["--task_name", "mrpc", "--embedded", "--no_such_flag", "1"], "--no_such_flag"),
        (
            ["--task_name", "mrpc", "--data_dir", "missing", "--model_name_or_path", EMBEDDED, "--do_eval"],
            "is not a folder",
        ),
        (["--task_name", "mrpc", "--embedded", "--learning_rate", "fast"], "invalid float value: 'fast'"),
        (["--task_name", "mrpc", "--embedded", "--eval_strategy", "sometimes"], "invalid choice: 'sometimes'"),
        (["--task_name"], "expected one argument"),
        (["--train_file", "missing.csv"], "missing.csv does not exist"),
        (["--train_file", EXAMPLE / "run_glue.py"], "neither a .csv nor a .json file"),
        (["--task_name", "mrpc", "--embedded", "--ddp_backend", "nccl", "--use_cpu"], "nccl"),
        (["--task_name", "mrpc", "--embedded", "--resume_from_checkpoint", "missing"], "there is no such folder"),
        (
            ["--task_name", "mrpc", "--data_dir", MRPC, "--model_name_or_path", EMBEDDED, "--do_train"],
            "cannot be loaded",  # a configuration and a tokenizer, no weights
        ),
    ],
    ids=str,
)
def test_wrong_arguments(refused, arguments, message):
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train.tsv is empty"),
        (HEADER, "train.tsv is empty"),
        (HEADER + "1\t0\t0\ta\n", "train.tsv, line 2: 4 columns"),
        (HEADER + "7\t0\t0\ta\tb\n", "train.tsv, line 2: the Quality is '7'"),
        ("label\tone\ttwo\n1\ta\tb\n", "no column '#1 String'"),
    ],
    ids=str,
)
def test_wrong_task_files(refused, data, text, message):
    folder = data(train_tsv=text)
    command = ("--task_name", "mrpc", "--data_dir", folder, "--model_name_or_path", EMBEDDED, "--do_train")
    assert message in refused(*command)


def test_task_folder_without_the_split_that_is_wanted(refused, data):
    folder = data(train_tsv=HEADER + "1\t0\t0\ta\tb\n")
    command = ("--task_name", "mrpc", "--data_dir", folder, "--model_name_or_path", EMBEDDED, "--do_eval")
    assert "--do_eval needs validation data; there is train" in refused(*command)


@pytest.mark.parametrize(
    ("train", "validation", "message"),
    [
        ("", "text,label\na,1\n", "train.csv is empty"),
        ("text,label\n", "text,label\na,1\n", "train.csv has no row"),
        ("text,class\na,1\n", "text,class\na,1\n", "train data has no column 'label'"),
        ("text,label\na,1\n", "words,label\na,1\n", "no column 'text'"),
        ("text,label\na,1\nb,\n", "text,label\na,1\n", "train data has no label in row 2"),
        ("text,label\na,x\nb,y\n", "text,label\na,z\n", "validation data has the label 'z'"),
        ("label\n1\n", "label\n1\n", "no column of text beside 'label'"),
        ("id,label\n5,1\n", "id,label\n5,1\n", "no column of text beside 'label'; its columns are id, label"),
        ("text,label\na,1\nb,1,2\n", "text,label\na,1\n", "train.csv, line 3: 3 columns, and the header has 2"),
        ("text,label\na,b,1\nc,d,1\n", "text,label\na,1\n", "train.csv, line 2: 3 columns"),
    ],
    ids=str,
)
def test_wrong_files_of_ones_own(refused, data, train, validation, message):
    folder = data(train_csv=train, validation_csv=validation)
    command = ("--train_file", folder / "train.csv", "--validation_file", folder / "validation.csv", "--do_train")
    assert message in refused(*command, "--model_name_or_path", EMBEDDED)


@pytest.mark.parametrize("label", [[1, 2], {"a": 1}], ids=str)
def test_labels_that_are_no_plain_values(refused, data, label):
    rows = json.dumps({"text": "a", "label": label})
    folder = data(train_json=rows, validation_json=rows)
    command = ("--train_file", folder / "train.json", "--validation_file", folder / "validation.json", "--do_train")
    assert "The labels are lists or objects" in refused(*command, "--model_name_or_path", EMBEDDED)


def test_files_of_two_kinds(refused, data):
    folder = data(train_csv="text,label\na,1\n", validation_json=json.dumps({"text": "a", "label": 1}))
    command = ("--train_file", folder / "train.csv", "--validation_file", folder / "validation.json")
    assert "give all as .csv, or all as .json" in refused(*command, "--model_name_or_path", EMBEDDED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[1, 2]", "is not a configuration"),
        ('{"task_name": "mrpc", "embedded": true, "learning_rat": 1}', "learning_rat"),
        ('{"task_name": "mrpc", "embedded": true, "learning_rate": "fast"}', "learning_rate='fast' is not accepted"),
    ],
    ids=str,
)
def test_wrong_configuration_file(refused, data, text, message):
    assert message in refused(data(config_json=text) / "config.json", output_dir=False)


def test_configuration_file_that_is_not_there(refused):
    assert "missing.json cannot be read" in refused("missing.json", output_dir=False)


def test_several_processes_are_refused_before_anything_is_read(refused, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert "2 processes were started" in refused("--task_name", "mrpc", "--embedded")


def test_output_folder_in_use_is_left_alone(run_glue, out):
    out.mkdir()
    (out / "thesis.txt").write_text("two years of work")
    status, _, errors = run_glue("--task_name", "mrpc", "--embedded")
    assert status == 2
    assert "exists, is not empty and has no checkpoint" in errors
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_file_in_place_of_the_output_folder_is_left_alone(run_glue, out):
    out.write_text("two years of work")
    status, _, errors = run_glue("--task_name", "mrpc", "--embedded")
    assert status == 2
    assert f"output_dir='{out}' is not accepted" in errors
    assert out.read_text() == "two years of work"


def test_without_hub_data_or_embedded_one_line_names_the_choices_without_retries(tmp_path):
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "home")}
    environment["PYTHONPATH"] = str(ROOT)
    command = ["--model_name_or_path", "google-bert/bert-base-cased", "--task_name", "mrpc", "--do_train"]
    start = time.monotonic()
    process = subprocess.run(
        [sys.executable, "run_glue.py", *command, "--output_dir", str(tmp_path / "out")],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert len(process.stderr.strip().splitlines()) == 1, process.stderr
    for choice in ("hub", "--data_dir", "--train_file", "--embedded"):
        assert choice in process.stderr
    assert not (tmp_path / "out").exists()
    # 4 seconds where nothing else runs; a client of the hub that tries again and again waits for 25 and more
    assert time.monotonic() - start < 20
