"""Uploads have the files, times and messages of transformers, as a stand-in for the hub records them."""

import errno
import logging
import shutil
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import filter_repo_objects

import mps_trainer
from tests.conftest import callback, refusal

from .conftest import Library


class StandIn:
    """Records what would go over the network. Fails or waits if told to."""

    def __init__(self, monkeypatch):
        self.repositories, self.uploads, self.fails = [], [], False
        self.gate = threading.Event()
        self.gate.set()
        monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda api, *a, **k: self.create(*a, **k))
        monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", lambda api, **k: self.upload(**k))

    def create(self, name, **settings):
        self.repositories.append((name, settings.get("private")))
        return SimpleNamespace(repo_id=f"me/{name}")

    def upload(self, *, repo_id, folder_path, commit_message, run_as_future=False, ignore_patterns=None, **settings):
        folder = Path(folder_path)
        files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        files = sorted(filter_repo_objects(files, ignore_patterns=ignore_patterns))
        place = settings.get("path_in_repo")
        self.uploads.append((repo_id, commit_message, place, settings.get("revision"), settings.get("token"), files))
        job: Future = Future()
        if not run_as_future:
            return SimpleNamespace(commit_url="https://hub/commit/1")
        if self.fails:
            job.set_exception(ConnectionError("the hub is gone"))
        else:
            threading.Thread(target=lambda: (self.gate.wait(10), job.set_result(None)), daemon=True).start()
        return job


@pytest.fixture
def fake_hub(monkeypatch):
    return StandIn(monkeypatch)


def run_with(library, fake_hub, **settings):
    fake_hub.uploads.clear()
    fake_hub.repositories.clear()
    pushing = {"push_to_hub": True, "hub_model_id": "tiny", "hub_always_push": True, "hub_token": "secret"}
    steps = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    return library.trained(**{**pushing, **steps, **settings})


@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_hub_strategy_uploads_files_of_transformers(both, fake_hub, strategy):
    def run(library):
        trainer = run_with(library, fake_hub, hub_strategy=strategy, hub_private_repo=True, hub_revision="branch")
        trainer.save_model()
        trainer.push_to_hub(tags=["small"], dataset="made up")
        return trainer.hub_model_id, list(fake_hub.repositories), list(fake_hub.uploads)

    theirs, ours = both(run)
    checkpoints = [upload[-1] for upload in ours[2] if upload[1].endswith("checkpoint")]
    assert bool(checkpoints) == strategy.endswith(("checkpoint", "checkpoints"))
    for files in checkpoints:
        files.remove("manifest.json")  # theirs lack both
        files.remove("loop_state.json")
    assert ours == theirs
    assert len(ours[2]) == {"end": 2, "every_save": 4}.get(strategy, 6)


def test_uploads_of_epochs_have_messages_of_transformers(assert_same_runs, fake_hub):
    def run(library):
        run_with(library, fake_hub, save_strategy="epoch", max_steps=-1, num_train_epochs=2)
        return list(fake_hub.uploads)

    assert assert_same_runs(run)[0][1] == "Training in progress, epoch 1"


@pytest.mark.parametrize("always", [False, True])
def test_no_upload_starts_while_another_runs_unless_asked(both, fake_hub, always):
    def run(library):
        begun, jobs = [], []

        def end(**_):
            jobs.append(len(trainer.push_in_progress.jobs))
            fake_hub.gate.set()

        fake_hub.gate.clear()
        fake_hub.uploads.clear()
        settings = {"push_to_hub": True, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
        opens = callback(on_push_begin=lambda state, **_: begun.append(state.global_step), on_train_end=end)
        trainer = library.trainer(callbacks=[opens], hub_always_push=always, **settings)
        trainer.train()
        return [upload[1] for upload in fake_hub.uploads], begun, jobs

    steps = [1, 2, 3] if always else [1]
    assert both(run) == (([f"Training in progress, step {step}" for step in steps], steps, [len(steps)]),) * 2


@pytest.mark.parametrize("content", ["dummy", "{}", None])
def test_a_checkpoint_without_a_readable_state_is_uploaded_as_in_transformers(assert_same_runs, fake_hub, content):
    def run(library):
        trainer = run_with(library, fake_hub, hub_strategy="every_save")
        fake_hub.uploads.clear()
        path = library.folder / "checkpoint-2" / "trainer_state.json"
        path.unlink() if content is None else path.write_text(content)
        trainer._push_from_checkpoint(str(path.parent))
        return [upload[1] for upload in fake_hub.uploads]

    assert assert_same_runs(run) == ["Training in progress, step 4"]


def test_failed_uploads_are_warned_of_and_training_goes_on(fake_hub, tmp_path, caplog):
    fake_hub.fails = True
    with caplog.at_level(logging.WARNING, "mps_trainer"):
        trainer = run_with(Library(mps_trainer, tmp_path), fake_hub, hub_strategy="every_save")
    assert trainer.state.global_step == 4
    assert (tmp_path / "checkpoint-4").is_dir()
    assert caplog.text.count("An upload to me/tiny failed: the hub is gone") == 2  # at the next save, and at the end
    assert trainer.push_in_progress is None


def test_a_disk_without_room_for_the_files_to_upload_does_not_end_training(fake_hub, tmp_path, monkeypatch, caplog):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(shutil, "copy", mock.Mock(side_effect=full))
    trainer = run_with(Library(mps_trainer, tmp_path), fake_hub, hub_strategy="every_save")
    assert trainer.state.global_step == 4
    assert caplog.text.count(f"is not uploaded, because it was not copied to {tmp_path}: the disk is full.") == 2


@pytest.mark.parametrize("status", [401, 403])
def test_token_without_write_access_is_refused_in_one_line(monkeypatch, tmp_path, status):
    def refuse(*args, **kwargs):
        request = SimpleNamespace(method="POST", url="https://hub/api/repos/create")
        response = SimpleNamespace(status_code=status, headers={}, request=request)
        raise HfHubHTTPError("Unauthorized\nRequest ID: 1", response=response)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    assert "hf auth login" in refusal(Library(mps_trainer, tmp_path).trainer, push_to_hub=True, hub_model_id="tiny")


def lacks(ours, theirs):
    """Returns the lines of their card that ours lacks or reorders, but for the placeholder in the section on data."""
    heading = "## Training and evaluation data\n\n"
    lines = iter(ours.splitlines())
    wanted = theirs.replace(f"{heading}More information needed\n", heading).splitlines()
    return [line for line in wanted if line not in lines]


@pytest.mark.parametrize("settings", [{}, {"optim": "sgd", "fp16_full_eval": True}, {"bf16": True, "warmup_steps": 2}])
def test_model_card_has_lines_of_transformers_card_offline(both, monkeypatch, settings):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(library):
        trainer = library.trained(max_steps=3, eval_strategy="steps", eval_steps=1, **settings)
        trainer.create_model_card(
            model_name="line", tags=["tiny"], license="mit", finetuned_from="base/line", language="en",
            tasks="text-classification", dataset_tags="glue", dataset="GLUE", dataset_args="mrpc",
        )  # fmt: skip
        return (library.folder / "README.md").read_text()

    theirs, ours = both(run)
    assert "Validation Loss" in ours
    assert lacks(ours, theirs) == []


def test_model_card_keeps_existing_tags(both):
    def run(library):
        library.folder.mkdir(parents=True)
        (library.folder / "README.md").write_text("---\ntags:\n- kept\n---\n# Mine\n")
        library.trainer().create_model_card(tags="new", finetuned_from="base/line", model_name="line")
        return (library.folder / "README.md").read_text()

    theirs, ours = both(run)
    assert "- kept" in ours
    assert lacks(ours, theirs) == []
