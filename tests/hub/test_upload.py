"""An upload copies the right files, and joins the push that is under way."""

import json
import logging
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import huggingface_hub
from transformers.utils.hub import PushInProgress

from mps_trainer.hub import upload


def test_the_end_of_a_run_waits_for_uploads(caplog):
    job: Future = Future()
    threading.Timer(0.1, job.set_exception, [ConnectionError("the hub is gone")]).start()
    with caplog.at_level(logging.INFO, "mps_trainer"):
        args, push = SimpleNamespace(output_dir="run"), PushInProgress([job])
        pushing = SimpleNamespace(args=args, hub_model_id="me/tiny", push_in_progress=push)
        upload.warn_of_failures(pushing, wait=True)
    assert "Waiting for the upload of the last checkpoint" in caplog.text
    assert "An upload to me/tiny failed: the hub is gone. The files are in run" in caplog.text


def test_all_shards_of_a_model_are_copied(tmp_path):
    checkpoint, output = tmp_path / "checkpoint-1", tmp_path / "run"
    checkpoint.mkdir()
    output.mkdir()
    shards = {"a.weight": "model-1-of-2.safetensors", "b.weight": "model-2-of-2.safetensors"}
    index = {"model.safetensors.index.json": json.dumps({"weight_map": shards})}
    for name, text in {**index, "config.json": "{}", "optimizer.pt": "", **dict.fromkeys(shards.values(), "")}.items():
        (checkpoint / name).write_text(text)
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: (output / "tokenizer.json").write_text("{}"))
    upload.copy_model_files(str(checkpoint), str(output), tokenizer)
    assert {path.name for path in output.iterdir()} == {"config.json", "tokenizer.json", *index, *shards.values()}


def test_a_checkpoint_that_is_being_written_is_not_uploaded():
    files = ["model.safetensors", "tmp-checkpoint-4/model.safetensors", "checkpoint-2/model.safetensors"]
    uploaded = huggingface_hub.utils.filter_repo_objects(files, ignore_patterns=upload.NOT_UPLOADED)
    assert list(uploaded) == ["model.safetensors"]
