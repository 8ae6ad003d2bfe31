"""cv_example.py takes the flags of Accelerate's script, and images whose names state their class."""

import importlib
import sys

import pytest
import torch
from safetensors.torch import load_file

from .conftest import EXAMPLE, write_images, write_vit

IMAGES = EXAMPLE.parent / "image-classification"
NAMES = "{label}_{i}.jpg"


@pytest.fixture
def cv_example(monkeypatch, tmp_path):
    """Imports the script, with the `train` module beside it, in a folder with images."""
    own = ("cv_example", "train")
    monkeypatch.syspath_prepend(IMAGES)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR")
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images", NAMES, count=5)
    before = {name: sys.modules.pop(name) for name in own if name in sys.modules}
    yield importlib.import_module("cv_example")
    for name in own:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.fixture
def run(cv_example, monkeypatch, capfd):
    """Runs the script on the folder `images`, or with `words`. Returns status, stdout and stderr."""

    def run(*words):
        given = () if "--data_dir" in words or not words else ("--data_dir", "images")
        monkeypatch.setattr(sys, "argv", ["cv_example.py", *given, *map(str, words)])
        capfd.readouterr()
        return cv_example.main(), *capfd.readouterr()

    return run


def refused(run, *words):
    status, _, errors = run(*words)
    assert status == 2, errors
    (line,) = errors.splitlines()
    assert line.startswith("cv_example.py: error: ")
    return line


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (None, "--data_dir pets is not a folder. Name one that has images in it."),
        ([], "--data_dir pets has no images. Call each image <class>_<number>.jpg"),
        (["notes.txt", "._beagle_1.jpg", ".DS_Store"], "--data_dir pets has no images."),
        (["beagle/1.jpg", "pug/1.jpg"], "For a folder of each class, use train.py."),
        (["pug_1.jpg", "beagle.jpg"], "pets/beagle.jpg has no class in its name. Call each image"),
        (["pug_1.jpg", "_7.jpg"], "pets/_7.jpg has no class in its name."),
        (["pug_1.jpg", "pug_2.JPEG"], "All images in pets are of the class pug; two are needed."),
    ],
    ids=str,
)
def test_folder_without_classes_is_refused_in_one_line(run, tmp_path, files, says):
    for name in files or []:
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / name).touch()
    if files == []:
        (tmp_path / "pets").mkdir()
    assert says in refused(run, "--data_dir", "pets")
    assert not (tmp_path / "trainer_output").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--data_dir"),
        (["--data_dir", "images/beagle_1.jpg"], "images/beagle_1.jpg is not a folder."),
        (["--checkpoint_steps", "2"], "Did you mean --checkpointing_steps?"),
        (["--mixed_precision", "fp8"], "invalid choice: 'fp8'"),
        (["--fp16", "--mixed_precision", "bf16"], "--mixed_precision bf16 contradicts --fp16: give one."),
        (["--checkpointing_steps", "often"], "--checkpointing_steps often is neither a number of steps nor epoch."),
        (["--checkpointing_steps", "0"], "--checkpointing_steps 0 is neither"),
        (["--checkpointing_steps", "9" * 5000], "--checkpointing_steps 99999999999999999999 is neither"),
        (["--model_name_or_path", "./gone"], "./gone is not a folder."),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_flag_is_refused_in_one_line(run, words, says):
    assert says in refused(run, *words)


def test_tracking_without_a_tracker_is_refused_in_one_line(run, cv_example, monkeypatch):
    monkeypatch.setattr(cv_example, "get_available_reporting_integrations", list)
    assert "--with_tracking needs a tracker, and none is installed" in refused(run, "--with_tracking")


@pytest.mark.parametrize(
    ("words", "launched", "expected"),
    [
        ([], None, "no"),
        (["--fp16"], None, "fp16"),
        (["--fp16"], "bf16", "fp16"),
        (["--mixed_precision", "no"], "bf16", "no"),
        (["--mixed_precision", "bf16"], "fp16", "bf16"),
        ([], "bf16", "bf16"),
    ],
)
def test_precision_comes_from_the_flag_or_else_the_launcher(cv_example, monkeypatch, words, launched, expected):
    if launched is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
    assert cv_example.parse(["--data_dir", "images", *words])[1].mixed_precision == expected


def test_flags_of_accelerate_become_arguments_of_the_trainer(cv_example):
    words = "--cpu --seed 7 --save_total_limit 2 --output_dir out --resume_from_checkpoint out/checkpoint-1"
    words += " --checkpointing_steps"
    _, args = cv_example.parse(["--data_dir", "images", *words.split(), "epoch"])
    assert (args.use_cpu, args.seed, args.output_dir) == (True, 7, "out")
    assert (args.save_strategy, args.resume_from_checkpoint) == ("epoch", "out/checkpoint-1")
    _, args = cv_example.parse(["--data_dir", "images", *words.split(), "20"])
    assert (args.save_strategy, args.save_steps, args.save_total_limit) == ("steps", 20, 2)


def test_a_fifth_of_the_images_is_held_back(cv_example, tmp_path):
    train, held, classes = cv_example.load_images("images", seed=1)
    assert (len(train), len(held), classes) == (8, 2, ["beagle", "pug"])
    for rows in (train, held):
        for row in rows:
            red, _, blue = row["image"].getpixel((9, 9))
            assert classes[row["label"]] == ("beagle" if red > blue else "pug")
    assert cv_example.load_images("images", seed=1)[1]["label"] == held["label"]


SMALL = ("--cpu", "--per_device_train_batch_size", "4", "--logging_steps", "1", "--output_dir", "out")


@pytest.mark.integration
def test_resumed_run_equals_uninterrupted_run(run, tmp_path):
    assert run(*SMALL, "--max_steps", "4", "--checkpointing_steps", "2")[0] == 0
    whole = (tmp_path / "out").rename(tmp_path / "whole")
    status, _, errors = run(*SMALL, "--max_steps", "4", "--resume_from_checkpoint", whole / "checkpoint-2")
    assert status == 0, errors
    assert not list((tmp_path / "out").glob("checkpoint-*"))  # --checkpointing_steps is not given
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.integration
def test_tracking_writes_to_the_project_dir_and_a_second_run_is_as_the_first(run, tmp_path):
    for _ in range(2):
        status, _, errors = run(*SMALL, "--max_steps", "1", "--with_tracking", "--project_dir", "tracked")
        assert status == 0, errors
    assert list((tmp_path / "tracked").rglob("events.out.tfevents.*"))


@pytest.mark.integration
def test_only_the_head_of_a_pretrained_model_trains(run, tmp_path):
    write_vit(tmp_path / "vit")
    assert run(*SMALL, "--max_steps", "1", "--model_name_or_path", "vit")[0] == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("vit", "out"))
    assert {name for name in after if not torch.equal(before[name], after[name])} == {
        "classifier.weight", "classifier.bias"
    }  # fmt: skip


@pytest.mark.integration
def test_image_that_cannot_be_read_is_one_line(run, tmp_path):
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(path.read_bytes()[:200])
    status, _, errors = run(*SMALL, "--max_steps", "1")
    assert status == 1
    (line,) = (line for line in errors.splitlines() if line.startswith("cv_example.py: error: "))
    assert "_" in line
    assert "Traceback" not in errors


@pytest.mark.integration
def test_fp16_trains_on_mps(run, mps):
    words = ("--fp16", "--max_steps", "1", "--per_device_train_batch_size", "4", "--output_dir", "out")
    status, output, errors = run(*words)
    assert status == 0, errors
    assert "Training on mps" in output
    assert mps.report().fell_back == ()
