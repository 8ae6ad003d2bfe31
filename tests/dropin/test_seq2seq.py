"""Seq2SeqTrainer generates, scores and pads as transformers' own does."""

import dataclasses

import numpy as np
import pytest
import torch
import transformers
from transformers import GenerationConfig, HfArgumentParser

import mps_trainer
from mps_trainer import Seq2SeqTrainer, Seq2SeqTrainingArguments
from tests.conftest import refusal
from tests.dropin.conftest import Library
from tests.tiny import tiny

SPECIAL = {"vocab_size": 40, "eos_token_id": 1}


def t5(dropout: float = 0.1):
    return tiny("T5ForConditionalGeneration", **SPECIAL, dropout_rate=dropout)


def bart():
    return tiny("BartForConditionalGeneration", **SPECIAL, bos_token_id=2, decoder_start_token_id=1)


def pairs(count: int = 12, labels: bool = True):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(3, 40, (count, 7), generator=generator)
    goal = torch.randint(3, 40, (count, 5), generator=generator)
    goal[::3, -2:] = -100
    made = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows]
    return [{**row, "labels": one} for row, one in zip(made, goal, strict=True)] if labels else made


def shifted(count: int):
    """Returns pairs with the decoder's inputs, as DataCollatorForSeq2Seq makes them for label smoothing."""
    model = t5()
    rows = pairs(count)
    return [{**row, "decoder_input_ids": model._shift_right(row["labels"][None])[0]} for row in rows]


def seq2seq(library, model=None, **settings):
    library = dataclasses.replace(library, prefix="Seq2Seq")
    return library.trainer(model or t5(), **{"predict_with_generate": True, **settings})


def sizes(prediction):
    return {"tokens": int(np.asarray(prediction.predictions).sum()), "width": prediction.predictions.shape[1]}


SETTINGS = {
    "greedy": {},
    "beams": {"generation_num_beams": 3, "generation_max_length": 9},
    "configuration": {
        "generation_config": GenerationConfig(max_length=11, num_beams=2, pad_token_id=0, decoder_start_token_id=0)
    },
    "new tokens": {"generation_config": GenerationConfig(max_new_tokens=25, pad_token_id=0, decoder_start_token_id=0)},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "logits": {"predict_with_generate": False},
    "loss only": {"prediction_loss_only": True},
    "bfloat16": {"bf16": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_training_evaluation_and_prediction_are_those_of_transformers(assert_same_runs, settings):
    def run(library):
        metric = sizes if settings.get("predict_with_generate", True) else None
        data = {"train_dataset": shifted(12), "eval_dataset": shifted(6), "compute_metrics": metric}
        steps = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
        trainer = seq2seq(library, **data, **{**steps, **settings})
        trainer.train()
        return trainer, trainer.predict(pairs(6))

    assert_same_runs(run)


@pytest.mark.parametrize("model", [t5, bart])
@pytest.mark.parametrize("given", [{}, {"max_length": 6}, {"max_new_tokens": 4, "num_beams": 2}, {"do_sample": True}])
def test_generation_kwargs_of_one_evaluation_are_used(assert_same_runs, model, given):
    def run(library):
        trainer = seq2seq(library, model(), eval_dataset=pairs(5), compute_metrics=sizes)
        torch.manual_seed(5)
        return trainer.evaluate(**given), trainer.predict(pairs(5, labels=False), **given).predictions

    assert_same_runs(run)


def test_generation_kwargs_reach_each_dataset_of_a_dictionary(tmp_path):
    """transformers drops them."""
    trainer = seq2seq(Library(mps_trainer, tmp_path), eval_dataset={"a": pairs(5)}, compute_metrics=sizes)
    assert trainer.evaluate(max_length=25)["eval_a_width"] == 25


@pytest.mark.parametrize("kind", ["file", "folder", "path"])
def test_generation_config_is_read_from_disk(assert_same_runs, tmp_path, kind):
    GenerationConfig(max_length=13, num_beams=2).save_pretrained(tmp_path / "saved")
    sources = {"folder": str(tmp_path / "saved"), "path": tmp_path / "saved"}
    source = sources.get(kind, str(tmp_path / "saved" / "generation_config.json"))

    def run(library):
        trainer = seq2seq(library, generation_config=source)
        return trainer.model.generation_config.max_length, trainer.args.to_dict()["generation_config"] is not None

    assert assert_same_runs(run) == (13, True)


def test_contradictory_generation_config_is_refused_as_in_transformers(both):
    contradictory = GenerationConfig(do_sample=False, top_p=0.9)

    def run(library):
        with pytest.raises(ValueError, match="Fix these issues to train your model"):
            seq2seq(library, generation_config=contradictory)

    both(run)


def test_missing_generation_config_and_pad_token_are_one_line_errors(tmp_path):
    args = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, generation_config=str(tmp_path / "none"))
    assert "generation_config=" in refusal(Seq2SeqTrainer, t5(), args)
    model = t5()
    model.config.pad_token_id = None
    trainer = Seq2SeqTrainer(model, Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True))
    assert "Set pad_token_id" in refusal(trainer._pad_tensors_to_max_len, torch.ones(1, 2, dtype=torch.long), 4)


def test_fields_have_defaults_of_transformers_and_are_parsed():
    base = {field.name for field in dataclasses.fields(mps_trainer.TrainingArguments)}
    ours = {f.name: f.default for f in dataclasses.fields(Seq2SeqTrainingArguments) if f.name not in base}
    theirs = {f.name: f.default for f in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}
    assert ours == {name: theirs[name] for name in theirs.keys() - base}
    words = ["--output_dir", "run", "--predict_with_generate", "--generation_max_length", "7"]
    (args,) = HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses(words)
    assert (args.predict_with_generate, args.generation_max_length, args.generation_config) == (True, 7, None)


@pytest.mark.parametrize("name", ["generation_max_length", "generation_num_beams"])
@pytest.mark.parametrize("value", [0, -1, "many", True])
def test_invalid_generation_length_is_refused(name, value):
    assert f"{name}=" in refusal(Seq2SeqTrainingArguments, "run", **{name: value})


def test_sortish_sampler_is_warned_of():
    with pytest.warns(UserWarning, match="group_by_length"):
        Seq2SeqTrainingArguments("run", sortish_sampler=True)


@pytest.mark.every_device(same_draws_as_cpu=True)
def test_generation_on_device_gives_tokens_of_the_cpu(device, tmp_path):
    args = Seq2SeqTrainingArguments(
        str(tmp_path), use_cpu=device == "cpu", predict_with_generate=True, max_steps=2, disable_tqdm=True,
        report_to="none", generation_num_beams=2,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(t5(dropout=0.0), args, train_dataset=pairs())
    trainer.train()
    made = trainer.predict(pairs(4)).predictions
    again = t5(dropout=0.0)
    again.load_state_dict({name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()})
    batch = {name: torch.stack([row[name] for row in pairs(4)]) for name in ("input_ids", "attention_mask")}
    expected = again.eval().generate(**batch, num_beams=2)
    np.testing.assert_array_equal(made[:, : expected.shape[1]], expected)
