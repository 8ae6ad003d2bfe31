"""Lists the nine tasks of GLUE: columns on the hub, labels, and the layout of their TSV files."""

from __future__ import annotations

from dataclasses import dataclass

SPLITS = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}


@dataclass(frozen=True)
class GlueTask:
    """One task.

    Args:
        text: text columns as the hub names them: one sentence, or two.
        labels: class names in the order of their ids; none for regression.
        folder: the benchmark's name of the folder.
        tsv_text: the same columns as the TSV files name them.
        tsv_label: the label's column in the TSV files.
        tsv_header: column names of the labelled files where they have no header line of their own.
        splits: TSV file of each split.
        metrics: names of what GLUE measures.
    """

    text: tuple[str, ...]
    labels: tuple[str, ...]
    folder: str
    tsv_text: tuple[str, ...] = ()
    tsv_label: str = "label"
    tsv_header: tuple[str, ...] | None = None
    splits: tuple[tuple[str, str], ...] = tuple(SPLITS.items())
    metrics: tuple[str, ...] = ("accuracy",)

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def num_labels(self) -> int:
        return len(self.labels) or 1


_PAIR = ("sentence1", "sentence2")
_F1 = ("accuracy", "f1", "combined_score")
_ENTAILMENT = ("entailment", "not_entailment")

TASKS: dict[str, GlueTask] = {
    "cola": GlueTask(
        ("sentence",),
        ("unacceptable", "acceptable"),
        "CoLA",
        tsv_header=("source", "label", "star", "sentence"),
        metrics=("matthews_correlation",),
    ),
    "mnli": GlueTask(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        "MNLI",
        tsv_text=_PAIR,
        tsv_label="gold_label",
        splits=(
            ("train", "train.tsv"),
            ("validation_matched", "dev_matched.tsv"),
            ("validation_mismatched", "dev_mismatched.tsv"),
            ("test_matched", "test_matched.tsv"),
            ("test_mismatched", "test_mismatched.tsv"),
        ),
    ),
    "mrpc": GlueTask(
        _PAIR,
        ("not_equivalent", "equivalent"),
        "MRPC",
        tsv_text=("#1 String", "#2 String"),
        tsv_label="Quality",
        metrics=_F1,
    ),
    "qnli": GlueTask(("question", "sentence"), _ENTAILMENT, "QNLI"),
    "qqp": GlueTask(
        ("question1", "question2"), ("not_duplicate", "duplicate"), "QQP", tsv_label="is_duplicate", metrics=_F1
    ),
    "rte": GlueTask(_PAIR, _ENTAILMENT, "RTE"),
    "sst2": GlueTask(("sentence",), ("negative", "positive"), "SST-2"),
    "stsb": GlueTask(_PAIR, (), "STS-B", tsv_label="score", metrics=("pearson", "spearmanr", "combined_score")),
    "wnli": GlueTask(_PAIR, ("not_entailment", "entailment"), "WNLI"),
}
