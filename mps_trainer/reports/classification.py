"""Describes the predictions of a classifier: its confusion matrix and its most confident mistakes, with texts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..checkpoints.rng import rng_state, set_rng
from ..data.columns import is_table
from ..utils.text import as_line

logger = logging.getLogger(__name__)

MOST_CLASSES = 20  # a confusion matrix has no more
_MOST_MISTAKES = 10
_MOST_EXAMPLES = 100_000
_LONGEST = 300  # characters of a text
_TOKENS = 256  # it decodes no more
_AT_A_TIME = 4096  # rows whose probabilities are in memory


def classification_of(
    logits: Any, labels: Any, names: Mapping[Any, Any], texts_of: Callable[[Sequence[int]], list[str]] | None
) -> dict[str, Any]:
    """Returns what a page shows of predictions; {} unless each example has one label and a logit for each class.

    Args:
        names: class -> name, as in `config.id2label`.
        texts_of: returns the texts of examples, by their rows in the dataset. None if the predictions are in another
            order: mistakes then have no row and no text.
    """
    if isinstance(logits, (tuple, list)) and logits:
        logits = logits[0]  # the others are hidden states or the like
    is_classification = (
        isinstance(logits, np.ndarray)
        and isinstance(labels, np.ndarray)
        and logits.ndim == 2
        and logits.shape[1] > 1
        and labels.shape == logits.shape[:1]
        and 0 < len(labels) <= _MOST_EXAMPLES
        and np.issubdtype(labels.dtype, np.integer)
        and np.issubdtype(logits.dtype, np.floating)
    )
    if not is_classification:
        return {}

    def name(number: Any) -> str:
        return as_line(str(names.get(int(number), int(number))), 60)

    classes = logits.shape[1]
    known = (labels >= 0) & (labels < classes)
    predicted = logits.argmax(axis=1)
    wrong = np.flatnonzero(known & (predicted != labels))
    confidence = _confidence(logits, wrong)
    first = np.argsort(-confidence, kind="stable")[:_MOST_MISTAKES]
    first = first[confidence[first] > 0]  # nan is no prediction
    rows = wrong[first].tolist()
    mistakes: list[dict[str, Any]] = [
        {"label": name(labels[row]), "predicted": name(predicted[row]), "confidence": round(float(value), 4)}
        for row, value in zip(rows, confidence[first], strict=True)
    ]
    if texts_of is not None and rows:
        for mistake, row, text in zip(mistakes, rows, texts_of(rows), strict=True):
            mistake.update(row=row, text=as_line(text, _LONGEST))
    found = {
        "examples": int(known.sum()),
        "wrong": len(wrong),
        "classes": [name(number) for number in range(min(classes, MOST_CLASSES))],
        "mistakes": mistakes,
    }
    if classes <= MOST_CLASSES:
        pairs = labels[known].astype(np.int64) * classes + predicted[known]
        found["confusion"] = np.bincount(pairs, minlength=classes**2).reshape(classes, classes).tolist()
    return found


def _confidence(logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the probability of the predicted class in each of `rows`; 0 where it is no number."""
    parts = []
    for start in range(0, len(rows), _AT_A_TIME):
        some = logits[rows[start : start + _AT_A_TIME]].astype(np.float32)
        with np.errstate(all="ignore"):
            parts.append(1 / np.exp(some - some.max(axis=1, keepdims=True)).sum(axis=1))
    return np.nan_to_num(np.concatenate(parts)) if parts else np.zeros(0, np.float32)


def texts_of(dataset: Any, rows: Sequence[int], decode: Callable[..., str] | None) -> list[str]:
    """Returns the decoded `input_ids` of examples, "" where there are none.

    A dataset may draw random numbers when an example is asked for; training goes on with those that it would have had.
    """
    if decode is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return [""] * len(rows)
    plain = dataset.with_format(None) if is_table(dataset) else dataset
    before, texts = rng_state(), []
    try:
        for row in rows:
            example: Any = plain[row] if row < len(plain) else None
            ids: Any = example.get("input_ids") if isinstance(example, Mapping) else None
            ids = ids.tolist() if hasattr(ids, "tolist") else ids
            is_text = isinstance(ids, list) and all(isinstance(each, int) for each in ids)
            texts.append(str(decode(ids[:_TOKENS], skip_special_tokens=True)) if is_text else "")
        return texts
    except Exception:
        logger.debug("The texts of mistakes cannot be read.", exc_info=True)
        return [""] * len(rows)
    finally:
        set_rng(before)
