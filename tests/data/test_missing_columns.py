"""Errors of code that needs a removed column say why the column is missing, and what to do."""

import re

import pytest
import torch
import transformers
from datasets import Dataset
from torch import nn

from mps_trainer.errors import explanation_of
from tests.conftest import Classifier, Stream, refusal
from tests.tiny import WORDS, tiny, tokenizer_of_words

TEXTS = Dataset.from_list([{"text": f"{WORDS[i]} {WORDS[i + 1]}", "label": i % 2, "idx": i} for i in range(8)])
POINTS = Dataset.from_list([{"point": [float(i)] * 4, "labels": i % 2} for i in range(8)])
TOKENIZER = tokenizer_of_words()
ENCODED = TEXTS.map(lambda row: dict(TOKENIZER(row["text"])))


class Rows(torch.utils.data.Dataset):
    """Reads the rows of a table, so that its columns cannot be removed before."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, row):
        return self.table[row]


class AnyInput(nn.Module):
    """A wrapper whose forward() does not name its inputs."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = Classifier() if inner is None else inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class Unpacking(AnyInput):
    def forward(self, **batch):
        return self.inner(batch["point"], batch["labels"])


def bert(**settings):
    return tiny("BertForSequenceClassification", num_hidden_layers=1, **settings)


def t5():
    return tiny("T5ForConditionalGeneration", num_hidden_layers=1)


def tokenize(rows):
    return {**TOKENIZER(rows["text"], padding="max_length", max_length=4), "labels": rows["label"]}


def tokenize_some(rows):
    return {**TOKENIZER(rows.get("text"), padding="max_length", max_length=4), "labels": rows["label"]}


def to_x(rows):
    return {"x": rows["point"], "labels": rows["labels"]}


def need_text(rows):
    batch = TOKENIZER([row["text"] for row in rows], padding=True, return_tensors="pt")
    return {**batch, "labels": torch.tensor([row["label"] for row in rows])}


def need_text_or_fail(rows):
    return {**TOKENIZER([row.get("text") for row in rows], return_tensors="pt"), "labels": torch.zeros(len(rows))}


def in_words(row):
    return {"label": "abc"[row["label"]]}


REMOVED = "was removed because {}.forward does not take it"
BERT = REMOVED.format("BertForSequenceClassification")
KEEP = "Set remove_unused_columns=False"
TOKENIZE = "Tokenize the texts first, as in dataset.map(lambda rows: tokenizer(rows['text']"
WORDS_FOR_NUMBERS = "Give each row the number of its class"
CASES = {
    "a transform that tokenizes": (bert, TEXTS.with_transform(tokenize), {}, [BERT, "'text'", "the dataset", KEEP]),
    "a transform that finds None": (bert, TEXTS.with_transform(tokenize_some), {}, ["'text'", "the dataset", KEEP]),
    "a transform of other inputs": (
        Classifier,
        POINTS.with_transform(to_x),
        {},
        [REMOVED.format("Classifier"), "'point'", "the dataset", KEEP],
    ),
    **{
        f"a collator that needs texts of a {kind}": (
            bert,
            make,
            {"data_collator": need_text},
            [BERT, "Column 'text'", "the data collator needs it", KEEP],
        )
        for kind, make in [
            ("table", lambda: TEXTS),
            ("dataset", lambda: Rows(TEXTS)),
            ("list", lambda: list(TEXTS)),
            ("stream", lambda: Stream(TEXTS)),
            ("stream of datasets", lambda: TEXTS.to_iterable_dataset()),
        ]
    },
    "a collator that finds None": (
        bert,
        Rows(TEXTS),
        {"data_collator": need_text_or_fail},
        ["'text'", "the data collator needs", KEEP],
    ),
    **{
        f"texts that nothing tokenizes in a {kind}": (
            bert,
            make,
            {},
            ["no input_ids", "'text'", "removed because BertForSequenceClassification.forward", TOKENIZE],
        )
        for kind, make in [
            ("table", lambda: TEXTS),
            ("list", lambda: list(TEXTS)),
            ("stream", lambda: Stream(TEXTS)),
            ("stream of datasets", lambda: TEXTS.to_iterable_dataset()),
        ]
    },
    "texts, and a tokenizer that only pads": (
        bert,
        TEXTS,
        {"processing_class": TOKENIZER},
        ["no input_ids", "'text'", TOKENIZE],
    ),
    "texts and their labels": (
        bert,
        Rows(TEXTS.map(in_words)),
        {},
        ["no input_ids", "'text'", TOKENIZE],
    ),
    "a list of texts": (bert, list(TEXTS["text"]), {}, ["texts", "Tokenize", "forward() takes"]),
    "a list of pairs": (
        Classifier,
        [(torch.ones(4), 0)] * 8,
        {},
        ["tuple", "dictionaries with the names that forward() takes: x, labels"],
    ),
    "a forward() that names nothing": (
        AnyInput,
        POINTS.rename_columns({"point": "x", "labels": "label"}),
        {},
        ["'x' was removed because AnyInput.forward names no inputs", KEEP],
    ),
    "a forward() that names nothing, and a list": (
        AnyInput,
        list(POINTS.rename_column("point", "x")),
        {},
        ["'x', 'labels' were removed because AnyInput.forward names no inputs", KEEP],
    ),
    "a forward() that names nothing, around a model": (
        lambda: AnyInput(bert()),
        ENCODED,
        {"data_collator": transformers.default_data_collator},
        ["'input_ids'", "removed because AnyInput.forward names no inputs", KEEP],
    ),
    "a forward() that unpacks its batch": (
        Unpacking,
        POINTS.rename_column("labels", "label"),
        {},
        ["'point' was removed because Unpacking.forward names no inputs", KEEP],
    ),
    "an input under another name": (
        Classifier,
        POINTS,
        {},
        ["no x", "'point' " + REMOVED.format("Classifier"), "Give the dataset a column 'x'"],
    ),
    "labels under another name": (
        bert,
        ENCODED.rename_column("label", "sentiment"),
        {"processing_class": TOKENIZER},
        ["no labels", "'sentiment'", "removed because BertForSequenceClassification.forward", "rename it to 'labels'"],
    ),
    "labels under another name in a list": (
        bert,
        list(ENCODED.rename_column("label", "sentiment")),
        {"processing_class": TOKENIZER},
        ["no labels", "'sentiment'", "removed because BertForSequenceClassification.forward", "rename it to 'labels'"],
    ),
    "targets of a sequence under another name": (
        t5,
        ENCODED.rename_column("label", "summary"),
        {"processing_class": TOKENIZER},
        ["no labels", "'summary'", "rename it to 'labels'"],
    ),
    "labels in words": (
        bert,
        ENCODED.map(in_words).rename_column("label", "labels"),
        {},
        ["no labels", "Column 'labels' has texts", ".forward takes numbers", WORDS_FOR_NUMBERS],
    ),
    "labels in words, and a tokenizer": (
        bert,
        ENCODED.map(in_words),
        {"processing_class": TOKENIZER},
        ["Column 'label' has texts, and BertForSequenceClassification.forward takes numbers", WORDS_FOR_NUMBERS],
    ),
    "labels in words of a stream": (
        bert,
        ENCODED.map(in_words).to_iterable_dataset(),
        {"processing_class": TOKENIZER},
        ["Column 'label' has texts, and BertForSequenceClassification.forward takes numbers", WORDS_FOR_NUMBERS],
    ),
    "answers under another name": (
        lambda: tiny("BertForQuestionAnswering", num_hidden_layers=1),
        ENCODED.map(lambda row: {"start": 0, "end": 1}),
        {"processing_class": TOKENIZER},
        ["no start_positions and no end_positions", "'start', 'end'", "rename it to 'start_positions'"],
    ),
    "a row without a label": (
        bert,
        ENCODED.map(lambda row, i: {"label": None if i == 3 else row["label"]}, with_indices=True),
        {"processing_class": TOKENIZER},
        ["row 3, column 'label' (None; in the others of type int)", "forward() takes"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_missing_column_is_named_with_the_remedy(make_trainer, name):
    model, rows, given, says = CASES[name]
    rows = rows() if callable(rows) and not isinstance(rows, (Dataset, torch.utils.data.Dataset)) else rows
    given = {"model": model(), "train_dataset": rows, "eval_dataset": None, **given}
    trainer = make_trainer(given, max_steps=2, per_device_train_batch_size=8)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the code that needs the column decides the type
        trainer.train()
    text = explanation_of(caught.value)
    assert text is not None, caught.value
    assert [part for part in says if part not in text] == [], text
    assert "\n" not in text
    assert ("Fix" in text) == (name == "a row without a label")


@pytest.mark.parametrize("work", ["evaluate", "predict"])
def test_an_evaluation_names_the_missing_column_too(make_trainer, work):
    trainer = make_trainer({"model": bert(), "eval_dataset": TEXTS})
    with pytest.raises(ValueError, match="input_ids") as caught:
        trainer.predict(TEXTS) if work == "predict" else trainer.evaluate()
    assert BERT.replace("was", "were").replace("it", "them") in explanation_of(caught.value)


@pytest.mark.parametrize("strategy", ["group_by_length", "bucket_by_length"])
@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (TEXTS.with_transform(tokenize), f"Column 'text' {BERT}, and the dataset's transform needs it"),
        (TEXTS, TOKENIZE),
    ],
    ids=["transform", "texts"],
)
def test_a_sampler_that_measures_rows_names_the_missing_column_too(make_trainer, rows, says, strategy):
    trainer = make_trainer({"model": bert(), "train_dataset": rows}, max_steps=1, train_sampling_strategy=strategy)
    with pytest.raises((KeyError, ValueError)) as caught:
        trainer.train()
    assert says in explanation_of(caught.value)


@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
def test_kept_texts_do_not_count_as_input(make_trainer, tokenizer):
    given = {"model": bert(), "train_dataset": TEXTS, "processing_class": tokenizer}
    with pytest.raises(ValueError, match="input_ids") as caught:
        make_trainer(given, max_steps=1, remove_unused_columns=False).train()
    assert "no input_ids. Column 'text' has texts, and the model takes numbers. " in explanation_of(caught.value)


@pytest.mark.parametrize("kind", [Stream, list])
def test_workers_name_the_missing_column_too(make_trainer, kind):
    given = {"model": bert(), "train_dataset": kind(TEXTS), "data_collator": need_text}
    trainer = make_trainer(given, max_steps=2, dataloader_num_workers=1, dataloader_multiprocessing_context="fork")
    with pytest.raises(KeyError) as caught:
        trainer.train()
    assert f"Column 'text' {BERT}" in explanation_of(caught.value)


@pytest.mark.parametrize(
    ("model", "rows", "says"),
    [
        (AnyInput, POINTS, "AnyInput.forward, which names no inputs, .* Set remove_unused_columns=False"),
        (
            Classifier,
            POINTS.select_columns("point"),
            r"Classifier.forward \(x, labels, .* Rename the columns, or set ",
        ),
        (
            bert,
            TEXTS.select_columns("text"),
            r"BertForSequenceClassification.forward \(input_ids, .* Tokenize the text",
        ),
    ],
    ids=["no names", "other names", "texts"],
)
def test_a_table_without_a_usable_column_is_refused(make_trainer, model, rows, says):
    text = refusal(make_trainer({"model": model(), "train_dataset": rows}, max_steps=1).train, kind=ValueError)
    assert re.search(says, text), text


@pytest.mark.parametrize("fails", [KeyError("text"), KeyError("name"), RuntimeError("the disk is away")])
def test_other_errors_do_not_blame_a_removed_column(make_trainer, fails):
    def collate(rows):
        raise fails

    rows = [{**row, "x": torch.ones(4)} for row in POINTS]  # `point` is removed
    trainer = make_trainer({"train_dataset": rows, "data_collator": collate}, max_steps=1)
    with pytest.raises(type(fails)) as caught:
        trainer.train()
    assert "removed" not in explanation_of(caught.value)


def test_an_error_of_a_model_that_has_all_inputs_is_not_explained(make_trainer):
    class Broken(Classifier):
        def forward(self, x, labels=None):
            raise ValueError("not today")

    rows = [{**row, "x": torch.ones(4)} for row in POINTS]
    with pytest.raises(ValueError, match="not today") as caught:
        make_trainer({"model": Broken(), "train_dataset": rows}, max_steps=1).train()
    assert explanation_of(caught.value) is None


class DataFrame:
    """Has the parts of pandas' DataFrame that a Trainer sees."""

    columns = ("text", "label")

    def __len__(self):
        return 8

    def __getitem__(self, name):
        raise KeyError(name)


DataFrame.__module__ = "pandas.core.frame"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"train": TEXTS, "extra": TEXTS}, "dict with the splits train, extra.* dataset\\['train'\\]"),
        ({"x": [[1.0] * 4] * 8, "labels": [0] * 8}, "dict with the columns x, labels.* datasets.Dataset.from_dict"),
        (TOKENIZER(list(TEXTS["text"])), "BatchEncoding with the columns input_ids, .* datasets.Dataset.from_dict"),
        (DataFrame(), "pandas DataFrame.* datasets.Dataset.from_pandas"),
    ],
    ids=["datasets", "columns", "encodings", "frame"],
)
@pytest.mark.parametrize("work", ["train", "predict"])
def test_data_that_has_no_rows_by_number_is_refused(make_trainer, data, says, work):
    trainer = make_trainer({"train_dataset": data, "eval_dataset": None}, max_steps=1)
    text = refusal(trainer.train if work == "train" else trainer.predict, *([] if work == "train" else [data]))
    assert re.search(says, text), text


class NamedRows(dict):
    """A dataset whose class is one of dictionaries: facts by name, rows by number."""

    def __len__(self):
        return 8

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else {"x": torch.ones(4), "labels": 0}


def test_a_dataset_that_is_also_a_dictionary_trains(make_trainer):
    assert make_trainer({"train_dataset": NamedRows(source="a table")}, max_steps=1).train().global_step == 1


def test_a_dictionary_with_row_numbers_is_a_dataset(make_trainer):
    rows = {i: {"x": torch.ones(4), "labels": 0} for i in range(8)}
    assert make_trainer({"train_dataset": rows}, max_steps=1).train().global_step == 1
