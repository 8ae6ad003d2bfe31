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

MOST_CLASSES = 20  # of a confusion matrix
_MOST_MISTAKES = 10
_MOST_EXAMPLES = 100_000
_LONGEST = 300  # characters of a text
_TOKENS = 256  # that are decoded for it
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
    if not _is_classification(logits, labels):
        return {}
    classes = logits.shape[1]
    known = (labels >= 0) & (labels < classes)
    predicted = logits.argmax(axis=1)
    wrong = np.flatnonzero(known & (predicted != labels))
    confidence = _confidence(logits, wrong)
    found = {
        "examples": int(known.sum()),
        "wrong": len(wrong),
        "classes": [as_line(str(names.get(number, number)), 60) for number in range(classes)][:MOST_CLASSES],
    }
    if classes <= MOST_CLASSES:
        pairs = labels[known].astype(np.int64) * classes + predicted[known]
        found["confusion"] = np.bincount(pairs, minlength=classes**2).reshape(classes, classes).tolist()
    first = np.argsort(-confidence, kind="stable")[:_MOST_MISTAKES]
    rows = [int(row) for row in wrong[first]]
    places: list[dict[str, Any]] = [{} for _ in rows]
    if texts_of is not None and rows:
        texts = texts_of(rows)
        places = [{"row": row, "text": as_line(text, _LONGEST)} for row, text in zip(rows, texts, strict=True)]
    found["mistakes"] = [
        {
            **place,
            "label": as_line(str(names.get(int(labels[row]), int(labels[row]))), 60),
            "predicted": as_line(str(names.get(int(predicted[row]), int(predicted[row]))), 60),
            "confidence": round(float(value), 4),
        }
        for place, row, value in zip(places, rows, confidence[first], strict=True)
    ]
    return found


def _is_classification(logits: Any, labels: Any) -> bool:
    if not isinstance(logits, np.ndarray) or not isinstance(labels, np.ndarray):
        return False
    return (
        logits.ndim == 2
        and logits.shape[1] > 1
        and labels.shape == logits.shape[:1]
        and 0 < len(labels) <= _MOST_EXAMPLES
        and np.issubdtype(labels.dtype, np.integer)
        and np.issubdtype(logits.dtype, np.floating)
    )


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
    before = rng_state()
    try:
        return [_text_of(plain[row], decode) if row < len(plain) else "" for row in rows]
    except Exception:
        logger.debug("The texts of mistakes cannot be read.", exc_info=True)
        return [""] * len(rows)
    finally:
        set_rng(before)


def _text_of(example: Any, decode: Callable[..., str]) -> str:
    ids: Any = example.get("input_ids") if isinstance(example, Mapping) else None
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        return ""
    return str(decode(ids[:_TOKENS], skip_special_tokens=True))
