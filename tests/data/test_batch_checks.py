"""Batches that a model cannot look up are refused in one line, and no batch that it can."""

import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertForSequenceClassification

from mps_trainer import Trainer
from mps_trainer.data.batch_checks import BatchCheck
from mps_trainer.errors import InvalidBatchError
from tests.conftest import refusal
from tests.tiny import tiny

POSITIONS = 12


def model_of(kind, **settings):
    """Returns a function that makes a model of 40 words and 12 positions."""
    sizes = {"vocab_size": 40, "max_position_embeddings": POSITIONS, "num_hidden_layers": 1, **settings}
    return lambda **more: tiny(kind, **{**sizes, **more})


bert = model_of("BertForSequenceClassification")
roberta = model_of("RobertaForSequenceClassification", max_position_embeddings=POSITIONS + 2, pad_token_id=1)
gpt2 = model_of("GPT2LMHeadModel")
bart = model_of("BartForConditionalGeneration", pad_token_id=1)
vit = model_of("ViTForImageClassification", image_size=4, patch_size=2, num_labels=3)


class Sentinel(BertForSequenceClassification):
    """Replaces ids that its vocabulary lacks, as models of images and text do."""

    def forward(self, input_ids=None, **inputs):
        return super().forward(torch.where((input_ids < 0) | (input_ids >= 40), 0, input_ids), **inputs)


CLASSES = {"labels": "class"}
WORDS = {"labels": "words"}
MODELS = {
    "single label": (bert, CLASSES),
    "several labels": (lambda: bert(num_labels=3, problem_type="multi_label_classification"), {"labels": "many"}),
    "no problem type": (lambda: bert(num_labels=3), {"labels": "many"}),
    "regression": (lambda: bert(num_labels=1), {"labels": "score"}),
    "token types": (bert, {**CLASSES, "token_type_ids": "types"}),
    "own positions": (bert, {**CLASSES, "position_ids": "positions"}),
    "tokens": (model_of("BertForTokenClassification", num_labels=3), {"labels": "classes"}),
    "masked": (model_of("BertForMaskedLM"), WORDS),
    "roberta": (roberta, CLASSES),
    "gpt2": (gpt2, WORDS),
    "llama": (model_of("LlamaForCausalLM"), WORDS),
    "bart": (bart, WORDS),
    "t5": (model_of("T5ForConditionalGeneration"), WORDS),
    "sentinel": (model_of(Sentinel), CLASSES),
}
# For each kind of column, what its values are below, and values at the limits.
LIMITS = {
    "class": (2, [1, 2, 5, -1, -100]),
    "classes": (3, [2, 3, -1, -100]),
    "types": (2, [1, 2, -1]),
    "positions": (POSITIONS, [POSITIONS - 1, POSITIONS, -1]),
    "words": (40, [39, 40, -1, -200, -100]),
}


@st.composite
def batches(draw, columns):
    """A batch that mostly fits; each column may have one value at or beyond a limit."""
    rows = draw(st.integers(1, 3))
    length = draw(st.sampled_from([1, 5, POSITIONS, POSITIONS + 1, POSITIONS + 4]))

    def column(shape, high, odd):
        made = torch.randint(0, high, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
        value = draw(st.sampled_from([None, None, None, *odd]))
        if value is not None:
            made.view(-1)[draw(st.integers(0, made.numel() - 1))] = value
        return made

    batch = {"input_ids": column((rows, length), 40, [39, 40, -1, -200])}
    if draw(st.booleans()):
        batch["attention_mask"] = torch.ones(rows, length, dtype=torch.long)
    for name, kind in columns.items():
        if kind in ("many", "score"):
            shape = draw(st.sampled_from([(rows,), (rows, 3 if kind == "many" else 1)]))
            batch[name] = torch.zeros(shape, dtype=draw(st.sampled_from([torch.float32, torch.int64])))
        else:
            batch[name] = column((rows,) if kind == "class" else (rows, length), *LIMITS[kind])
    return batch


def error_of(model, batch):
    try:
        model(**batch).loss.backward()
    except (IndexError, RuntimeError, ValueError) as error:
        return error
    return None


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_refused_if_and_only_if_the_model_fails_on_the_cpu(name):
    make, columns = MODELS[name]
    model = make()
    problem_type = getattr(model.config, "problem_type", None)  # the first labels may set it
    outcomes = set()

    @settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(batches(columns))
    def run(batch):
        model.config.problem_type = problem_type
        expected = error_of(model, batch)
        model.config.problem_type = problem_type
        try:
            with BatchCheck(model).watching(batch, "Row {}".format):
                model(**batch).loss.backward()
        except InvalidBatchError:
            assert expected is not None
            outcomes.add("refused")
        else:
            assert expected is None
            outcomes.add("taken")

    run()
    assert outcomes == {"refused", "taken"}


def rows(count=8, length=5, label=lambda row: row % 2):
    return [{"input_ids": [3 + row] * length, "labels": label(row)} for row in range(count)]


def refused(make_trainer, model, data, **settings):
    trainer = make_trainer({"model": model, "train_dataset": data}, max_steps=4, **settings)
    said = refusal(trainer.train, kind=InvalidBatchError)
    assert trainer.state.global_step == 0
    return said


TWO_CLASSES = "BertForSequenceClassification has 2 classes, 0 to 1. "
TEXT = {"input_ids": [3] * 5, "token_type_ids": [0] * 5, "labels": 0}
TEXTS, IMAGE = {"input_ids": [3] * 5, "labels": [3] * 5}, {"pixel_values": torch.zeros(3, 4, 4), "labels": 0}
OUTSIDE = {
    "class": (bert, TEXT, {"labels": 5}, f"5 in column 'labels', and {TWO_CLASSES}Number the classes from 0, or load"),
    "unlabelled": (bert, TEXT, {"labels": -1}, f"-1 in column 'labels', and {TWO_CLASSES}"),
    "token": (bert, TEXT, {"input_ids": [3, 3, 3, 3, 77]}, "77 at position 4 in column 'input_ids', and BertFor"),
    "type": (bert, TEXT, {"token_type_ids": [0, 0, 2, 0, 0]}, "2 at position 2 in column 'token_type_ids', and Bert"),
    "causal": (gpt2, TEXTS, {"labels": [3, 3, 40, 3, 3]}, "40 at position 2 in column 'labels', and GPT2LMHeadModel "),
    "seq2seq": (bart, TEXTS, {"labels": [3, 40, 3, 3, 3]}, "40 at position 1 in column 'labels', and BartForConditi"),
    "image": (vit, IMAGE, {"labels": 3}, "3 in column 'labels', and ViTForImageClassification has 3 classes, 0 to 2"),
}


@pytest.mark.every_device
@pytest.mark.parametrize(("make", "row", "change", "says"), OUTSIDE.values(), ids=OUTSIDE)
def test_a_value_outside_a_table_is_named_with_row_column_and_limit(make_trainer, make, row, change, says):
    data = [{**row, **change} if number == 5 else row for number in range(8)]
    said = refused(make_trainer, make(), data, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert said.startswith(f"Row 5 of the training dataset has {says}")
    assert said.endswith("num_labels=6.") == (change.get("labels") == 5)


@pytest.mark.parametrize("make", [bert, roberta, gpt2, bart])
def test_a_text_beyond_the_positions_is_named_and_one_that_fits_is_not(make_trainer, make):
    def data(length):
        long = [{"input_ids": [3] * length, "labels": 0 if make in (bert, roberta) else [3] * length}] * 8
        return [{**row, "attention_mask": [1] * (length - (i != 5)) + [0] * (i != 5)} for i, row in enumerate(long)]

    model = make()
    said = refused(make_trainer, model, data(POSITIONS + 1))
    row = "Row 5 of the training" if make is not roberta else " of the training"
    row += " dataset makes column 'input_ids' 13 tokens long"
    assert f"{row}, and {type(model).__name__} has 12 positions" in said
    make_trainer({"model": make(), "train_dataset": data(POSITIONS)}, max_steps=1).train()


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({"problem_type": "multi_label_classification"}, [1, 0, 1]),
        ({"problem_type": "multi_label_classification"}, 1),
        ({}, [1, 0, 1]),
        ({}, 1.0),
        ({}, [True, False, True]),
    ],
)
def test_labels_in_a_format_that_the_loss_does_not_take_are_explained(make_trainer, config, label):
    said = refused(make_trainer, bert(num_labels=3, **config), rows(label=lambda row: label))
    assert f" of the training dataset has {label} in column 'labels', and BertForSequenceClassification with" in said


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "bool", "float16", "float32"])
def test_the_explained_loss_is_the_one_that_transformers_concludes(dtype):
    model = bert(num_labels=3)
    labels = torch.ones(2, 2).to(getattr(torch, dtype))  # neither one class nor three
    said = BatchCheck(model).misfit({"labels": labels})
    with pytest.raises((ValueError, RuntimeError)):
        model(input_ids=torch.ones(2, 4, dtype=torch.long), labels=labels)
    assert f"problem_type={model.config.problem_type!r} does not take torch.{dtype} labels" in said


def test_the_look_up_is_refused_before_the_device_makes_it(make_trainer):
    """A GPU may not check it: mps reads another row of the table, and cuda ends the process."""

    class Seen(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.embedding.default:
                self.largest = max(self.largest, int(args[1].max()))
            return func(*args, **(kwargs or {}))

    data = rows()
    data[3]["input_ids"] = [3, 3, 3, 3, 99]
    with Seen() as seen:
        refused(make_trainer, bert(), data, per_device_train_batch_size=1, gradient_accumulation_steps=8)
    assert 0 < seen.largest < 40


def test_a_row_is_not_named_where_the_collator_joins_examples(make_trainer):
    def joined(examples):
        ids = [token for example in examples for token in example["input_ids"]]
        return {"input_ids": torch.tensor([ids]), "labels": torch.tensor([7])}

    trainer = make_trainer({"model": bert(), "train_dataset": rows(length=1), "data_collator": joined}, max_steps=1)
    assert refusal(trainer.train, kind=InvalidBatchError).startswith("Row 0 of a batch in step 1 has 7 in column")


@pytest.mark.parametrize("run", ["evaluate", "predict"])
def test_an_evaluation_names_the_row_of_its_dataset(make_trainer, run):
    data = rows(20, label=lambda row: 2 if row == 13 else 0)
    trainer = make_trainer({"model": bert(), "eval_dataset": data})
    with pytest.raises(InvalidBatchError, match=r"^Row 13 of the (evaluation|prediction) dataset has 2 in column"):
        trainer.evaluate() if run == "evaluate" else trainer.predict(data)


def test_an_evaluation_by_length_names_the_row_of_the_batch(make_trainer):
    data = [{"input_ids": [4] * (12 - row), "labels": int(row == 1) * 2} for row in range(12)]
    given = {
        "model": bert(),
        "data_collator": lambda rows: {
            key: torch.tensor([row[key][:1] if key == "input_ids" else row[key] for row in rows]) for key in rows[0]
        },
    }
    trainer = make_trainer(given, train_sampling_strategy="bucket_by_length")
    assert re.search(r"^Row \d of a batch has 2 in column", refusal(trainer.predict, data, kind=InvalidBatchError))


def test_labels_that_a_subclass_takes_for_something_else_are_left_alone(make_trainer):
    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            wanted = inputs.pop("labels")
            outputs = model(**inputs)
            loss = (outputs.logits.mean(-1) - wanted).square().mean()
            return (loss, outputs) if return_outputs else loss

    data = rows(label=lambda row: 70 + row)
    make_trainer({"kind": Own, "model": bert(), "train_dataset": data}, max_steps=2).train()


def test_a_model_that_replaces_ids_itself_is_asked_once():
    model, batch = model_of(Sentinel)(), {"input_ids": torch.full((2, 5), -200)}
    check = BatchCheck(model)
    assert check.doubts(batch) == ["input_ids"]
    with check.watching(batch, str):
        model(**batch)
    assert check.doubts(batch) == []


def test_what_it_cannot_judge_is_left_alone(make_model):
    check = BatchCheck(make_model())
    assert check.doubts({"x": torch.zeros(2, 4), "labels": torch.tensor([7, -1])}) == []  # a model without a config
    assert BatchCheck(bert()).doubts({"input_ids": torch.full((2, 5), 99, device="meta")}) == []
    too_long = {"input_ids": torch.full((2, POSITIONS + 4), 3)}
    with pytest.raises(RuntimeError, match=r"^out of memory") as caught, BatchCheck(bert()).watching(too_long, str):
        raise RuntimeError("out of memory")
    assert not isinstance(caught.value, InvalidBatchError)
    # The labels exceed the classes, and the model maps them itself, by a gather with arguments by name.
    batch = {"input_ids": torch.zeros(2, 3, dtype=torch.uint16), "labels": torch.tensor([5, 0])}
    with BatchCheck(bert()).watching(batch, str):
        found = torch.gather(torch.eye(2), index=torch.zeros(2, 1, dtype=torch.long), dim=1)
        assert batch["input_ids"].long().sum() == 0  # torch cannot compare the format
    assert found.tolist() == [[1], [0]]
