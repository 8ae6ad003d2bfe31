"""The predictions of a classifier in the report: confusion matrix and most confident mistakes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mps_trainer.evaluation.batches import is_sequential
from mps_trainer.reports import classification
from mps_trainer.reports.classification import classification_of, texts_of
from mps_trainer.reports.pages import run_page
from mps_trainer.reports.record import PAGE
from tests.conftest import accuracy, callback

from .conftest import Elements, read_back, rows_of

LOGITS = np.array([[2.0, 0.0], [0.0, 3.0], [4.0, 0.0], [0.0, 1.0], [0.0, 1.0]], np.float32)
LABELS = np.array([0, 1, 1, 0, -100])


def nothing(rows):
    return [""] * len(rows)


def test_mistakes_come_with_the_most_confident_first_and_those_without_a_number_not_at_all():
    logits = LOGITS, LOGITS  # the second one are hidden states
    found = classification_of(logits, LABELS, {0: "no", 1: "yes"}, lambda rows: [f"text {row}" for row in rows])
    assert (found["examples"], found["wrong"], found["classes"]) == (4, 2, ["no", "yes"])
    assert found["confusion"] == [[1, 1], [1, 1]]
    first, second = found["mistakes"]
    assert first == {"row": 2, "text": "text 2", "label": "yes", "predicted": "no", "confidence": 0.982}
    assert (second["row"], second["confidence"]) == (3, 0.7311)
    logits = np.array([[np.nan, 0.0], [5.0, 0.0]], np.float32)
    found = classification_of(logits, np.array([1, 1]), {}, nothing)
    assert found["wrong"] == 2
    assert [mistake["confidence"] for mistake in found["mistakes"]] == [0.9933]


def test_mistakes_in_an_unknown_order_have_no_row_and_no_text(record):
    record.classification = classification_of(LOGITS, LABELS, {0: "no", 1: "yes"}, None)
    assert record.classification["confusion"] == [[1, 1], [1, 1]]
    assert record.classification["mistakes"][0] == {"label": "yes", "predicted": "no", "confidence": 0.982}
    rows = rows_of(run_page(record))
    begin = rows.index(["label", "predicted", "probability"])
    assert rows[begin + 1] == ["yes", "no", "0.982"]


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (LOGITS[:, :1], LABELS.astype(np.float32)),  # a regression
        (LOGITS, np.stack([LABELS, LABELS], axis=1)),  # several labels
        (LOGITS, LABELS.astype(np.float32)),
        (LOGITS[:, None], LABELS),
        (LOGITS.argmax(1), LABELS),
        (LOGITS[:3], LABELS),
        (LOGITS[:0], LABELS[:0]),
        ((), LABELS),
        (LOGITS, (LABELS, LABELS)),
        (np.zeros((100_001, 2), np.float32), np.zeros(100_001, int)),
    ],
)
def test_other_predictions_are_left_out(logits, labels):
    assert classification_of(logits, labels, {}, nothing) == {}


def test_what_is_kept_of_many_classes_and_mistakes_is_small():
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(20_000, 30)), generator.integers(0, 30, 20_000)
    found = classification_of(logits, labels, {}, nothing)
    assert "confusion" not in found
    assert len(found["mistakes"]) == 10
    exact = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    wrong = logits.argmax(axis=1) != labels
    best = np.sort(exact.max(axis=1)[wrong])[::-1][:10]
    assert [mistake["confidence"] for mistake in found["mistakes"]] == pytest.approx(best.tolist(), abs=1e-4)


def decode(ids, skip_special_tokens):
    assert skip_special_tokens
    return " ".join(f"word{number}" for number in ids)


class Draws(torch.utils.data.Dataset):
    """Draws random numbers when an example is asked for, as an augmentation does; the last one cannot be read."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 3:
            raise OSError("the disk is gone")
        return {"input_ids": torch.randint(1, 2, (index + 1,))}


def test_texts_are_those_of_the_dataset_and_reading_them_draws_no_random_number():
    before = torch.get_rng_state()
    assert texts_of(Draws(), [0, 1], decode) == ["word1", "word1 word1"]
    assert torch.equal(torch.get_rng_state(), before)
    assert texts_of(Draws(), [0, 3], decode) == ["", ""]
    assert torch.equal(torch.get_rng_state(), before)
    datasets = pytest.importorskip("datasets")
    rows = [{"input_ids": [1, 2]}, {"input_ids": torch.tensor([3])}, {"x": 4}, {"input_ids": [[5]]}]
    assert texts_of(rows, [0, 1, 2, 3, 9], decode) == ["word1 word2", "word3", "", "", ""]
    assert texts_of(rows, [0], None) == [""]
    assert texts_of(None, [0], decode) == [""]
    table = datasets.Dataset.from_list(rows[:1])
    untransformed = table.with_transform(lambda batch: pytest.fail("transformed"))
    for each in (table, table.with_format("torch"), untransformed):
        assert texts_of(each, [0], decode) == ["word1 word2"]


def test_the_order_of_the_dataset_is_known():
    def loader(**settings):
        return torch.utils.data.DataLoader(list(range(8)), **settings)

    assert is_sequential(loader(batch_size=2))
    assert not is_sequential(loader(batch_size=2, shuffle=True))
    assert not is_sequential(loader(batch_sampler=[[1, 0]]))
    assert not is_sequential([1, 2])


class Fixed(torch.nn.Module):
    """Predicts class 1 for each example, more confidently for larger tokens."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, input_ids, labels):
        logits = input_ids.float() * self.weight
        return {"loss": logits.square().mean(), "logits": logits}


ROWS = [{"input_ids": [number], "labels": number % 2} for number in range(1, 9)]
PARTS = {"train_dataset": ROWS, "eval_dataset": ROWS, "compute_metrics": accuracy}


def first_tokens(rows):
    """Batches the examples as Fixed takes them, with one token each."""
    tokens = torch.tensor([row["input_ids"][:1] for row in rows])
    return {"input_ids": tokens, "labels": torch.tensor([row["labels"] for row in rows])}


def test_a_run_has_the_mistakes_of_its_last_evaluation_and_of_no_prediction(make_trainer, tmp_path):
    given = {**PARTS, "model": Fixed(), "processing_class": SimpleNamespace(decode=decode)}
    trainer = make_trainer(given, report=True, max_steps=1)
    trainer.add_callback(callback(on_step_end=lambda **_: trainer.predict(ROWS)))
    trainer.train()
    assert read_back(tmp_path / "run")["classification"] == {}
    metrics = trainer.evaluate()
    record = read_back(tmp_path / "run")
    assert record["history"][-1]["eval_accuracy"] == metrics["eval_accuracy"]
    assert record["events"][-1]["kind"] == "evaluation"
    found = record["classification"]
    assert found["confusion"] == [[0, 4], [0, 4]]
    assert [mistake["text"] for mistake in found["mistakes"]] == ["word8", "word6", "word4", "word2"]
    page = (tmp_path / "run" / PAGE).read_text()
    assert "<td>word8</td>" in page
    assert "<dt>accuracy</dt>" in page


@pytest.mark.parametrize("strategy", ["random", "group_by_length", "bucket_by_length"])
def test_a_row_is_the_one_in_the_dataset(trained, tmp_path, strategy):
    """The only mistake is row 5, the longest example, which group_by_length moves to the front."""
    rows = [{"input_ids": [1] * (6 if number == 5 else 1), "labels": int(number != 5)} for number in range(8)]
    given = {"model": Fixed(), "train_dataset": rows, "eval_dataset": rows, "compute_metrics": accuracy}
    trainer = trained(
        {**given, "data_collator": first_tokens}, report=True, max_steps=1, train_sampling_strategy=strategy
    )
    trainer.evaluate()
    (mistake,) = read_back(tmp_path / "run")["classification"]["mistakes"]
    assert mistake["row"] == 5
    assert "<th>row</th>" in (tmp_path / "run" / PAGE).read_text()


def test_nothing_is_kept_without_a_report(make_trainer, monkeypatch):
    monkeypatch.setattr(classification, "classification_of", lambda *given: pytest.fail("it was made"))
    make_trainer({**PARTS, "model": Fixed()}, report=False, max_steps=2, eval_strategy="steps", eval_steps=1).train()
    make_trainer({**PARTS, "model": Fixed()}, report=True).evaluate()


def test_the_page_has_confusion_matrix_and_mistakes(record):
    page = run_page(record)
    rows = rows_of(page)
    begin = rows.index(["label", "no", "yes"])
    assert rows[begin - 1 : begin + 3] == [
        ["", "predicted"], ["label", "no", "yes"], ["no", "788 %", "112 %"], ["yes", "338 %", "562 %"]
    ]  # fmt: skip
    assert rows[begin + 3 : begin + 6] == [
        ["class", "examples", "precision", "recall", "F1"],
        ["no", "8", "70 %", "88 %", "0.778"],
        ["yes", "8", "83 %", "62 %", "0.714"],
    ]
    begin += 6
    assert rows[begin : begin + 2] == [
        ["text", "label", "predicted", "probability"],
        ["two words", "yes", "no", "0.97"],
    ]
    assert "4 of 16 examples were misclassified" in page
    assert '<td class="right" style="--share:88%">7<small>88 %</small></td>' in page
    assert '<td class="wrong" style="--share:12%">1<small>12 %</small></td>' in page
    record.classification["mistakes"][0]["text"] = "<b>bold</b>"
    assert "<b>bold</b>" in Elements(run_page(record)).text
    record.classification["mistakes"][0]["text"] = ""
    assert rows_of(run_page(record))[begin : begin + 2] == [
        ["row", "label", "predicted", "probability"],
        ["3", "yes", "no", "0.97"],
    ]
    record.classification = {}
    assert "Classification" not in run_page(record)
