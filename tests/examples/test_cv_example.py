"""cv_example.py, which classifies images, from start to finish."""

import os
import re

import numpy as np
import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
from cv_arguments import parse
from cv_data import Rows, find_images, split
from cv_pixels import Settings
from cv_shapes import draw_shapes, write
from PIL import Image
from safetensors.torch import load_file

from tests.conftest import on_device

from .conftest import read

pytestmark = pytest.mark.integration  # whole scripts

QUIET = ("--disable_tqdm", "True", "--eval_strategy", "no")
SHORT = (*QUIET, "--embedded", "--per_device_train_batch_size", 8)


@pytest.fixture
def folder(tmp_path):
    """Writes forty shapes as <label>_<number>.jpg and returns their folder."""
    write(tmp_path / "images", draw_shapes(40))
    return tmp_path / "images"


def losses(out):
    return [entry["loss"] for entry in read(out / "trainer_state.json")["log_history"] if "loss" in entry]


def test_embedded_shapes_are_learned(run_cv, out):
    status, output, errors = run_cv("--embedded", "--num_train_epochs", 4)
    assert status == 0, errors
    assert "Training on cpu" in output
    results = read(out / "all_results.json")
    assert (results["train_samples"], results["eval_samples"]) == (480, 120)
    card = (out / "README.md").read_text()
    assert "trained from scratch on the drawn shapes dataset" in card
    assert f"- Accuracy: {results['eval_accuracy']:.4f}" in card
    # Guessing is right in a quarter of the cases. A model that sees only how much of the image is bright mistakes
    # circles for squares and crosses for triangles, and is right in half of them.
    assert results["eval_accuracy"] >= 0.7


@pytest.mark.every_device
def test_resumed_run_equals_uninterrupted_run(run_cv, out, tmp_path):
    command = (*SHORT, "--max_steps", 6, "--logging_steps", 1, "--checkpointing_steps", 2)
    assert run_cv(*command)[0] == 0
    whole = out.rename(tmp_path / "whole")
    status, _, errors = run_cv(*command, "--resume_from_checkpoint", whole / "checkpoint-4")
    assert status == 0, errors
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-6"]  # it did not begin anew
    assert losses(out) == losses(whole)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.every_device
def test_checkpoints_are_written_every_epoch(run_cv, out, folder):
    command = ("--data_dir", folder, "--image_size", 32, "--num_train_epochs", 2, *QUIET)
    assert run_cv(*command, "--checkpointing_steps", "epoch", "--per_device_train_batch_size", 16)[0] == 0
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]


def test_simulated_device_has_losses_of_the_cpu(run_cv, out, tmp_path, monkeypatch):
    command = (*SHORT, "--max_steps", 12, "--logging_steps", 1)
    assert run_cv(*command)[0] == 0
    on_cpu = losses(out.rename(tmp_path / "cpu"))
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    with on_device("mps") as mps:
        status, _, errors = run_cv(*command)
        report = mps.report()
    assert status == 0, errors
    assert losses(out) == pytest.approx(on_cpu, abs=1e-4)
    assert report.fell_back == ()
    assert report.operator_calls > 12 * 30  # the model was there


def test_augmented_images_follow_the_seed(run_cv):
    rows = Rows(draw_shapes(8), Settings(32, (0.5,) * 3, (0.5,) * 3), augment=True)
    torch.manual_seed(1)
    first = [rows[0]["pixel_values"] for _ in range(4)]
    torch.manual_seed(1)
    again = [rows[0]["pixel_values"] for _ in range(4)]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert len({one.numpy().tobytes() for one in first}) == 4
    assert {(one.dtype, tuple(one.shape)) for one in first} == {(torch.float32, (3, 32, 32))}


def test_labels_come_from_names_or_folders(tmp_path):
    image = Image.new("RGB", (8, 8))
    for label in ("old_dog", "cat"):
        (tmp_path / "folders" / label).mkdir(parents=True)
        (tmp_path / "names").mkdir(exist_ok=True)
        for number in range(3):
            image.save(tmp_path / "folders" / label / f"{number}.png")
            image.save(tmp_path / "names" / f"{label}_{number}.JPEG", "JPEG")
    (tmp_path / "names" / "cat_7.mat").write_text("no image by its name")
    for layout in ("names", "folders"):
        found = find_images(str(tmp_path / layout))
        assert found.labels == ("cat", "old_dog")
        assert found.ids == [0, 0, 0, 1, 1, 1]


def test_split_holds_back_a_fifth():
    images = draw_shapes(40)
    train, held = split(images, seed=7)
    assert (len(train.ids), len(held.ids)) == (32, 8)
    assert {id(image) for image in train.images}.isdisjoint({id(image) for image in held.images})
    assert split(images, seed=7)[1].ids == held.ids
    assert split(images, seed=8)[1].ids != held.ids


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_images_of_all_modes_have_three_channels(tmp_path, mode):
    path = tmp_path / f"cat_1.{'jpg' if mode == 'CMYK' else 'png'}"
    Image.new(mode, (40, 20)).save(path)
    row = Rows(find_both(path), Settings(16, (0.0,) * 3, (1.0,) * 3))[0]
    assert row["pixel_values"].shape == (3, 16, 16)


def test_photographs_are_rotated_by_exif(tmp_path):
    lying = Image.fromarray(np.repeat(np.uint8([[[255, 0, 0]], [[0, 0, 255]]]), 20, axis=1).repeat(10, axis=0))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    lying.save(tmp_path / "cat_1.png", exif=exif)
    pixels = Rows(find_both(tmp_path / "cat_1.png"), Settings(16, (0.0,) * 3, (1.0,) * 3))[0]["pixel_values"]
    assert pixels[:, 0, 0].tolist() == [0, 0, 1]


def find_both(path):
    """Returns the image at `path` and one of another label."""
    Image.new("RGB", (8, 8)).save(path.with_name("dog_1.png"))
    return find_images(str(path.parent))


@pytest.mark.parametrize(
    ("words", "variable", "expected"),
    [
        ([], None, "no"),
        ([], "bf16", "bf16"),
        ([], "no", "no"),
        (["--mixed_precision", "no"], "bf16", "no"),
        (["--mixed_precision", "bf16"], "fp16", "bf16"),
        (["--bf16"], "no", "bf16"),
        (["--bf16", "--mixed_precision", "bf16"], None, "bf16"),
    ],
    ids=str,
)
def test_flags_override_variables_of_the_launcher(monkeypatch, words, variable, expected):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    if variable is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", variable)
    assert parse(["--embedded", *words])[1].mixed_precision == expected


def test_tracking_writes_into_project_dir(run_cv, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR")
    command = (*SHORT, "--max_steps", 1, "--with_tracking", "--project_dir", tmp_path / "logs")
    status, _, errors = run_cv(*command)
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR")
    assert status == 0, errors
    assert list((tmp_path / "logs").rglob("events.out.tfevents.*"))


def test_saved_model_is_trained_on_other_labels(run_cv, out, tmp_path, folder):
    assert run_cv(*SHORT, "--max_steps", 1)[0] == 0
    first = out.rename(tmp_path / "first")
    for path in [*folder.glob("circle_*"), *folder.glob("cross_*")]:
        path.unlink()
    command = ("--data_dir", folder, "--model_name_or_path", first, "--freeze_backbone", "--max_steps", 1, *QUIET)
    status, _, errors = run_cv(*command)
    assert status == 0, errors
    assert read(out / "config.json")["id2label"] == {"0": "square", "1": "triangle"}
    assert read(out / "preprocessor_config.json") == read(first / "preprocessor_config.json")
    assert read(out / "preprocessor_config.json")["size"] == {"height": 32, "width": 32}

    before, after = (load_file(where / "model.safetensors") for where in (first, out))
    changed = {name for name in after if name not in before or not torch.equal(before[name], after[name])}
    moving = {name for name in changed if re.search(r"running_(mean|var)|num_batches", name)}
    assert {name.split(".")[0] for name in changed - moving} == {"classifier"}


def test_truncated_image_is_named(run_cv, folder):
    path = sorted(folder.iterdir())[0]
    path.write_bytes(path.read_bytes()[:-300])
    status, _, errors = run_cv("--data_dir", folder, "--image_size", 32, "--num_train_epochs", 1, *QUIET)
    assert status == 2
    (line,) = (line for line in errors.splitlines() if line.startswith("cv_example.py: error:"))
    assert str(path) in line
    assert "Traceback" not in errors


@pytest.mark.parametrize("flags", [["--cpu", "--mixed_precision", "bf16"], ["--mixed_precision", "no"]], ids=str)
def test_variables_of_accelerate_launch_are_used(run_cv, out, folder, monkeypatch, flags):
    typed = ["--data_dir", str(folder), "--image_size", "32", "--max_steps", "1", "--eval_strategy", "no"]
    parser = launch_command_parser()
    told = parser.parse_args([*flags, "--num_processes", "1", "cv_example.py", *typed])
    command, environment = prepare_simple_launcher_cmd_env(_validate_launch_command(told)[0])
    assert command[1:] == ["cv_example.py", *typed]
    for name in set(environment) - set(os.environ):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setenv("ACCELERATE_USE_CPU", environment["ACCELERATE_USE_CPU"])
    status, output, errors = run_cv(*typed)
    assert status == 0, errors
    assert ("which `accelerate launch --cpu` sets" in output) == ("--cpu" in flags)
    trained = torch.load(out / "training_args.bin", weights_only=False)
    assert trained.mixed_precision == ("bf16" if "bf16" in flags else "no")
