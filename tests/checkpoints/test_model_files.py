"""Weights that their owner converted: loaded with a warning, or refused where a part of them is missing."""

import dataclasses
import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from mps_trainer import MisconfigurationException, Trainer
from mps_trainer.checkpoints import loading, manifest, output_folder, writers
from tests.conftest import Classifier, assert_same_weights, refusal, weights
from tests.tiny import tiny

WEIGHTS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = "model.safetensors.index.json"


def shard(folder):
    tensors = load_file(os.path.join(folder, WEIGHTS))
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for part, of in parts.items():
        save_file({name: tensors[name] for name in of}, os.path.join(folder, part), metadata={"format": "pt"})
    with open(os.path.join(folder, INDEX), "w") as file:
        json.dump({"metadata": {}, "weight_map": {name: part for part, of in parts.items() for name in of}}, file)
    os.remove(os.path.join(folder, WEIGHTS))


def unpack(folder):
    torch.save(load_file(os.path.join(folder, WEIGHTS)), os.path.join(folder, PICKLED))
    os.remove(os.path.join(folder, WEIGHTS))


@pytest.mark.parametrize("convert", [shard, unpack])
@pytest.mark.parametrize("requested", ["name", True])
def test_converted_weights_are_loaded_with_a_warning(trained, saved, caplog, convert, requested):
    expected = load_file(os.path.join(saved, WEIGHTS))
    convert(saved)
    again = trained(resume=saved if requested == "name" else requested, max_steps=2, save_strategy="no")
    assert_same_weights(expected, weights(again.model))
    [told] = [each.getMessage() for each in caplog.records if "converted" in each.getMessage()]
    new = "pytorch_model.bin" if convert is unpack else "model-00001-of-00002.safetensors and 1 more"
    assert f"{new} replaced model.safetensors, and there is no checksum to verify them" in told


def test_an_index_is_not_counted_among_the_weights_that_were_replaced(saved):
    shard(saved)
    manifest.write(saved, 2, 1)
    torch.save({}, os.path.join(saved, PICKLED))
    for name in [each for each in os.listdir(saved) if each.startswith("model")]:
        os.remove(os.path.join(saved, name))
    assert manifest.converted(saved).startswith(f"{PICKLED} replaced model-00001-of-00002.safetensors and 1 more, ")


def test_nothing_is_told_of_weights_as_they_were_saved(trained, saved, caplog):
    open(os.path.join(saved, PICKLED), "wb").close()  # beside them, of no matter
    trained(resume=saved, max_steps=2)
    assert "converted" not in caplog.text


def second_part(folder):
    shard(folder)
    return os.path.join(folder, "model-00002-of-00002.safetensors")


def lose_a_name(folder):
    shard(folder)
    index = json.loads(Path(folder, INDEX).read_text())
    index["weight_map"] = {name: part for name, part in index["weight_map"].items() if "00001" in part}
    Path(folder, INDEX).write_text(json.dumps(index))


def replace_pickled(folder, write):
    unpack(folder)
    with open(os.path.join(folder, PICKLED), "wb") as file:
        write(file)


SPOILED = [
    (lambda folder: os.remove(second_part(folder)), "model-00002-of-00002.safetensors is missing"),
    (lambda folder: os.truncate(second_part(folder), 60), "model-00002-of-00002.safetensors is damaged"),
    (lose_a_name, "parameters are missing"),
    (lambda folder: replace_pickled(folder, lambda file: pickle.dump(os.system, file)), "could run code"),
    (
        lambda folder: replace_pickled(folder, lambda file: torch.save({"x": "y"}, file)),
        "other than a model's w",
    ),
    (lambda folder: os.remove(os.path.join(folder, WEIGHTS)), "model.safetensors is missing"),
    (lambda folder: (unpack(folder), os.truncate(os.path.join(folder, "scheduler.pt"), 60)), "scheduler.pt has 60"),
]


@pytest.mark.parametrize(("spoil", "says"), SPOILED)
def test_converted_weights_that_are_not_all_there_are_refused(make_trainer, saved, spoil, says):
    spoil(saved)
    assert says in refusal(make_trainer(max_steps=4).train, resume_from_checkpoint=saved)


@pytest.fixture
def bert():
    return tiny("BertForSequenceClassification")


class Processor:
    def save_pretrained(self, folder):
        Path(folder, "vocabulary.txt").write_text("one two three")


@pytest.mark.parametrize(
    ("processor", "files"),
    [(None, []), (object(), []), (Processor(), ["vocabulary.txt"])],
    ids=["none", "cannot", "can"],
)
def test_a_processor_is_saved_with_the_model_if_it_can_be(make_args, make_model, tmp_path, processor, files):
    args = make_args(hub_token="secret")
    writers.write_model_files(make_model(), processor, args, str(tmp_path / "new" / "folder"))
    writers.write_files_without_weights(make_model(), processor, args, str(tmp_path / "no" / "weights"))
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == sorted([WEIGHTS, "training_args.bin", *files])
    assert sorted(os.listdir(tmp_path / "no" / "weights")) == sorted(["training_args.bin", *files])
    saved = torch.load(tmp_path / "no" / "weights" / "training_args.bin", weights_only=False)
    assert (saved, args.hub_token) == (dataclasses.replace(args, hub_token=None), "secret")


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", ["model", "compiled", "of transformers"])
def test_the_weights_are_the_models_or_those_given_and_say_that_they_are_of_torch(
    make_args, make_model, bert, tmp_path, kind, given
):
    model = bert if kind == "of transformers" else make_model()
    others = {name: tensor + 1 for name, tensor in model.state_dict().items()} if given else None
    saved = SimpleNamespace(_orig_mod=model) if kind == "compiled" else model
    writers.write_model_files(saved, None, make_args(), str(tmp_path), others and dict(others))
    assert_same_weights(load_file(tmp_path / WEIGHTS), others or weights(model))
    with safe_open(tmp_path / WEIGHTS, "pt") as file:
        assert file.metadata() == {"format": "pt"}  # without it, transformers does not read them


def test_the_configuration_without_the_weights_is_the_one_that_comes_with_them(make_args, bert, tmp_path):
    bert = bert.bfloat16()
    writers.write_files_without_weights(bert, None, make_args(), str(tmp_path / "without"))
    writers.write_model_files(bert, None, make_args(), str(tmp_path / "with"))
    written = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("without", "with")]
    assert written[0] == written[1]
    assert (written[0]["architectures"], written[0]["dtype"]) == (["BertForSequenceClassification"], "bfloat16")
    assert AutoConfig.from_pretrained(tmp_path / "without").hidden_size == 16


def test_arguments_that_cannot_be_pickled_are_left_out_with_a_warning(make_model, tmp_path, caplog):
    class Inside:
        pass

    (tmp_path / "training_args.bin").write_text("of another run")
    writers.write_model_files(make_model(), None, Inside(), str(tmp_path))
    assert os.listdir(tmp_path) == [WEIGHTS]
    assert f"{tmp_path}/training_args.bin was not written: the arguments cannot be pickled (" in caplog.text
    assert "Inside" in caplog.text


def test_the_processor_is_the_one_given_or_the_collators():
    collator = SimpleNamespace(tokenizer="the collator's")
    cases = (("given", collator, "given"), (None, collator, "the collator's"), (None, None, None))
    for given, collates, expected in cases:
        trainer = SimpleNamespace(processing_class=given, data_collator=collates)
        assert writers.processor_to_save(trainer.processing_class, trainer.data_collator) == expected


def test_an_output_folder_is_made_or_refused_with_the_reason(tmp_path, monkeypatch):
    output_folder.make_folder(str(tmp_path / "a" / "b"))
    output_folder.make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    refused = {"file": "File exists", "file/b": "Not a directory"}
    for name, why in refused.items():
        said = refusal(output_folder.make_folder, str(tmp_path / name))
        assert said == (f"Nothing can be written to output_dir {tmp_path / name}: {why}. Name another folder.")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write everywhere
    said = refusal(output_folder.make_folder, str(tmp_path / "a" / "b"))
    assert said.endswith("b: permission denied. Name another folder.")


def test_a_folder_without_weights_says_which_file_it_lacks(make_model, tmp_path):
    said = refusal(loading.load_weights, make_model(), str(tmp_path))
    assert said.startswith(f"{tmp_path} is not a checkpoint with weights: it has no model.safetensors. Name a folder")


def test_numbers_and_empty_tensors_are_read(tmp_path):
    first, second = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    first(torch.randn(4, 3))
    for model in (first, second):
        model.register_buffer("nothing", torch.empty(0, 3))
    save_file(first.state_dict(), tmp_path / "model.safetensors")
    loading.load_weights(second, str(tmp_path))
    assert second.num_batches_tracked == 1
    assert_same_weights(weights(second), weights(first))


def test_weights_of_another_shape_are_another_models(make_model, tmp_path):
    save_file({**make_model().state_dict(), "head.bias": torch.ones(3)}, tmp_path / WEIGHTS)
    with pytest.raises(MisconfigurationException, match=r"^The weights in .* another model: .*:\n.*head.bias"):
        loading.load_weights(make_model(), str(tmp_path))


@pytest.mark.parametrize("place", ["folder", "link"])
def test_a_file_that_is_none_is_damaged_and_one_that_is_missing_starts_anew_with_a_warning(tmp_path, caplog, place):
    optimizer = torch.optim.SGD([torch.ones(1)])
    loading.load_state_dicts({loading.OPTIMIZER: optimizer}, str(tmp_path))
    assert caplog.messages == [f"{tmp_path} has no optimizer.pt: this part of the run starts from the beginning."]
    path = tmp_path / loading.OPTIMIZER
    if place == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    said = refusal(loading.load_state_dicts, {loading.OPTIMIZER: optimizer}, str(tmp_path))
    assert said == (
        f"{path} is damaged and cannot be read: it is a folder, or a link that leads nowhere. Resume from another "
        "checkpoint."
    )


@pytest.mark.parametrize(("error", "why"), [(KeyError("a"), "it has no 'a'"), (ValueError("one\ntwo"), "one")])
def test_a_part_that_does_not_take_its_state_is_named_with_the_reason(tmp_path, error, why):
    class Refuses:
        def load_state_dict(self, state):
            raise error

    torch.save({}, tmp_path / loading.SCHEDULER)
    said = refusal(loading.load_state_dicts, {loading.SCHEDULER: Refuses()}, str(tmp_path))
    assert said.startswith(f"{tmp_path / loading.SCHEDULER} does not belong to this run: {why}. Resume with the model")


def test_weights_of_transformers_model_that_lack_a_parameter_are_another_models(tmp_path):
    model = tiny("BertForSequenceClassification")
    model.save_pretrained(tmp_path)
    save_file({name: value for name, value in weights(model).items() if name != "classifier.bias"}, tmp_path / WEIGHTS)
    said = refusal(loading.load_weights, model, str(tmp_path))
    assert "1 parameter is missing and 0 are unexpected, for example classifier.bias" in said


def test_what_a_model_leaves_out_of_its_checkpoints_is_not_missing(tmp_path):
    save_file({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, tmp_path / WEIGHTS)
    model = nn.Linear(2, 2)
    model.register_buffer("places", torch.arange(2.0))
    said = refusal(loading.load_weights, model, str(tmp_path))
    assert "1 parameter is missing and 0 are unexpected, for example places" in said
    model._keys_to_ignore_on_save = ["places"]
    loading.load_weights(model, str(tmp_path))
    assert torch.equal(model.weight, torch.ones(2, 2))


def test_weights_are_read_even_where_there_are_adapters_too(make_model, tmp_path):
    model = make_model()
    nn.init.ones_(model.head.weight)
    save_file(model.state_dict(), tmp_path / WEIGHTS)
    (tmp_path / "adapter_config.json").write_text("{}")
    save_file({}, tmp_path / "adapter_model.safetensors")
    again = make_model()
    loading.load_weights(again, str(tmp_path))
    assert_same_weights(weights(again), weights(model))


@pytest.mark.parametrize("shown", [False, True])
def test_the_bars_of_transformers_are_shown_again_if_they_were_before(make_args, bert, tmp_path, monkeypatch, shown):
    inside, is_shown, save = [], transformers_logging.is_progress_bar_enabled, bert.save_pretrained
    monkeypatch.setattr(transformers_logging, "_tqdm_active", shown)
    monkeypatch.setattr(bert, "save_pretrained", lambda *args, **how: inside.append(is_shown()) or save(*args, **how))
    writers.write_model_files(bert, None, make_args(), str(tmp_path))
    assert (inside, is_shown()) == ([False], shown)


class WithState(Classifier):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def get_extra_state(self):
        return self.state

    def set_extra_state(self, state):
        self.state = state


@pytest.mark.parametrize("state", [{"seen": 3}, {"seen": torch.ones(2)}, "text", None])
def test_an_extra_state_that_is_no_tensor_is_refused_before_training(make_trainer, state):
    trainer = make_trainer({"model": nn.Sequential(WithState(state))}, max_steps=2, save_strategy="steps")
    for work in (trainer.train, trainer.save_model):
        text = refusal(work)
        assert f"get_extra_state() of WithState ('0') returns a {type(state).__name__}, and weights are saved" in text
        assert "torch.frombuffer(bytearray(pickle.dumps(state)), dtype=torch.uint8)" in text
    assert trainer.state.global_step == 0


def test_an_extra_state_of_any_type_is_accepted_if_it_is_not_saved(make_trainer):
    trainer = make_trainer({"model": WithState({"seen": 3})}, max_steps=1, save_strategy="no")
    assert trainer.train().global_step == 1
    model = WithState(torch.ones(2))
    assert make_trainer({"model": model}, max_steps=1, save_strategy="steps", save_steps=1).train().global_step == 1


def test_an_extra_state_of_any_type_is_accepted_beside_adapters_or_if_the_trainer_saves_itself(make_trainer):
    class SavesItself(Trainer):
        def save_model(self, output_dir=None, _internal_call=False):
            saved.append(output_dir)

    saved = []
    settings = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": False}
    given = {"model": WithState({"seen": 3}), "kind": SavesItself}
    assert make_trainer(given, **settings).train().global_step == 1
    assert saved
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(WithState({"seen": 3}), peft.LoraConfig(target_modules=["hidden"]))
    assert make_trainer({"model": model}, **settings).train().global_step == 1
