"""Explains errors of code that misses a column: a transform, a collator or a model.

`remove_unused_columns` removes the columns that the model's forward() does not take, as in transformers, and
transformers' collators leave out texts, because they take only numbers. The code that needs the column fails later.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from ..errors import MisconfigurationException, explain
from ..model.introspection import base_model, main_input_name

_LABELS = ("labels", "label", "label_ids")  # transformers' collators rename the last two


class ModelColumns:
    """Knows which columns reach a model, and says why others do not.

    Args:
        kept: the names that a column may have; None if no column is removed.
        label_names: the names of the labels that the Trainer looks for.
    """

    def __init__(self, model: Any, kept: Sequence[str] | None, label_names: Sequence[str]) -> None:
        self._kept, self.model_name = kept, type(model).__name__
        self._label_names, self._labels = label_names, {*label_names, *_LABELS}
        inner = base_model(model)
        arguments = inspect.signature(inner.forward).parameters.values()
        named = [each for each in arguments if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        self.named = [each.name for each in named]
        inputs = [each for each in named if each.name not in self._labels]
        self._names_inputs, main = bool(inputs), main_input_name(inner)
        # transformers' models may have embeddings instead of their main input, so its default is None
        self._needed = [each.name for each in inputs if each.default is each.empty or each.name == main]

    def is_label(self, name: str | None) -> bool:
        """Returns True if collators and the Trainer use a column as labels."""
        return name in self._labels

    def removed(self, names: Any) -> list[str]:
        """Returns the columns among `names` that do not reach the collator."""
        return [] if self._kept is None else [name for name in names if name not in self._kept]

    def why_needed(self, names: Sequence[str], by: str) -> str:
        """Returns the cause and the remedy for code that fails because it needs these removed columns.

        Args:
            by: names the code, as in "the data collator".
        """
        return f"{self._removal(names)}, and {by} needs {_it(names)}. Set remove_unused_columns=False."

    def why_row_fails(self, error: Exception, table: Any, kept: Any, row: int) -> str | None:
        """Returns why `kept`, a table without its unused columns, cannot read a row; None if they are not the cause.

        Only a transform, which runs when a row is read, can need a column.
        """
        if _reads(kept, row):
            return None
        removed = [name for name in table.column_names if name not in kept.column_names]
        needed = [name for name in removed if name == missing_key(error)]
        if not needed and removed and _reads(table, row):
            needed = [name for name in removed if not _reads(table.remove_columns(name), row)] or removed
        return self.why_needed(needed, "the dataset's transform") if needed else None

    def why_collator_fails(self, error: Exception, collate: Callable, examples: Sequence[Any]) -> str | None:
        """Returns why a collator fails on the kept columns; None if it also fails on all columns.

        Args:
            collate: takes `examples`, which have all columns.
        """
        if not all(isinstance(example, Mapping) for example in examples):
            return None

        def works_without(name: str | None) -> bool:
            given = [{key: value for key, value in example.items() if key != name} for example in examples]
            return _succeeds(lambda: collate(given))

        removed = self.removed(examples[0])
        needed = [name for name in removed if name == missing_key(error)]
        if not needed and removed and works_without(None):
            needed = [name for name in removed if not works_without(name)] or removed
        if needed:
            return self.why_needed(needed, "the data collator")
        if not is_of_transformers(collate):
            return None
        reaches = {name for name in examples[0] if name not in removed and not _is_text(examples[0][name])}
        return self.why_no_input(examples[0], reaches) or self._why_text_labels(examples)

    def why_none_is_left(self, names: Sequence[str], texts: Sequence[str]) -> str:
        """Returns why no column of a table would reach the model; `texts` names its columns of texts."""
        begin = f"None of the dataset's columns ({', '.join(names)}) is an argument of {self.model_name}.forward"
        if not self._names_inputs:
            return (
                f"{begin}, which names no inputs, so nothing would reach the model. Set remove_unused_columns=False."
            )
        todo = (
            tokenizing(texts[0])
            if texts and "input_ids" in self._needed
            else "Rename the columns, or set remove_unused_columns=False if the data collator makes the model's "
            "inputs from them."
        )
        return f"{begin} ({', '.join(self._kept or ())}), so nothing would reach the model. {todo}"

    def why_no_input(self, example: Mapping[str, Any], batch: Collection[str]) -> str | None:
        """Returns why a batch with these names, made of rows like `example`, lacks inputs of the model.

        Returns None if the batch has all inputs, or every column of `example`.
        """
        removed = self.removed(example)
        texts = [name for name in example if _is_text(example[name]) and name not in batch]
        why = [self._removal(removed)] if removed else []
        if left_out := [name for name in texts if name not in removed]:
            why.append(f"{_columns(left_out)} {_has(left_out)} texts, and the model takes numbers")
        if removed and not self._names_inputs and all(map(self.is_label, batch)):
            return f"The batch has no input. {why[0]}. Set remove_unused_columns=False."
        missing = [name for name in self._needed if name not in batch and "inputs_embeds" not in batch]
        if not why or not missing:
            return None
        todo = tokenizing(texts[0]) if texts and "input_ids" in missing else _giving(missing)
        return f"The batch has no {' and no '.join(missing)}. {'; '.join(why)}. {todo}"

    def why_no_labels(self, example: Mapping[str, Any], batch: Collection[str]) -> str | None:
        """Returns why a batch with these names, made of rows like `example`, has no labels; None as for inputs."""
        missing = [name for name in self._label_names or _LABELS[:1] if name not in batch]
        if not missing:
            return None
        begin = f"The batch has no {' and no '.join(missing)}. "
        if text := self._why_text_labels([example]):
            return begin + text
        if not (removed := self.removed(example)):
            return None
        which = "it" if len(removed) == 1 else "one of them"
        return (
            f"{begin}{self._removal(removed)}. If {which} has the labels, rename it to {missing[0]!r}; else use a "
            "data collator that makes labels, such as DataCollatorForLanguageModeling."
        )

    def _why_text_labels(self, examples: Sequence[Mapping[str, Any]]) -> str | None:
        labels = filter(self.is_label, examples[0])
        texts = [name for name in labels if all(_is_text(example.get(name)) for example in examples)]
        if not texts:
            return None
        return (
            f"{_columns(texts)} {_has(texts)} texts, and {self.model_name}.forward takes numbers. Give each row the "
            "number of its class, or tokenize the texts if the model writes them."
        )

    def _removal(self, names: Sequence[str]) -> str:
        takes = f"does not take {_it(names)}" if self._names_inputs else "names no inputs"
        was = "was" if len(names) == 1 else "were"
        return f"{_columns(names)} {was} removed because {self.model_name}.forward {takes}"


def explain_missing_columns(error: Exception, loader: Any, batch: Any, needs_labels: bool) -> None:
    """Explains an error of a step if `batch` of `loader` lacks columns that the dataset has.

    Args:
        needs_labels: whether the model has to return a loss.
    """
    columns: ModelColumns | None = getattr(loader, "columns", None)
    is_suspicious = isinstance(error, (TypeError, ValueError, KeyError, AttributeError))
    if not is_suspicious or isinstance(error, MisconfigurationException):
        return
    if columns is not None and isinstance(batch, Mapping):
        with contextlib.suppress(Exception):  # a search for the fault must not hide the fault
            if isinstance(example := _example(loader), Mapping):
                text = columns.why_no_input(example, batch)
                if text is None and needs_labels:
                    text = columns.why_no_labels(example, batch)
                if text is not None:
                    explain(error, text)


@contextlib.contextmanager
def explaining_transform(columns: ModelColumns, table: Any, kept: Any) -> Iterator[None]:
    """Explains an error inside, where a sampler measures rows of `kept`, a table without its unused columns."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):
            text = columns.why_row_fails(error, table, kept, 0)
            text = text or columns.why_no_input(table[0], kept.column_names)
            if text is not None:
                explain(error, text)
        raise


def _example(loader: Any) -> Any:
    """Returns a row of the loader's dataset with all its columns; None if it cannot be read again."""
    dataset, read = loader.made_for, getattr(loader.collate_fn, "example", None)
    if not isinstance(dataset, IterableDataset):
        return dataset[0]
    if read is None and (features := getattr(dataset, "features", None)):  # workers read it
        return {name: "" if getattr(kind, "dtype", None) == "string" else None for name, kind in features.items()}
    return read


def missing_key(error: BaseException) -> str | None:
    """Returns the key that a KeyError names, even if a worker sent the error as text."""
    if not isinstance(error, KeyError) or not error.args:
        return None
    sent = re.search(r"^KeyError: ['\"](.*)['\"]$", str(error.args[0]), re.MULTILINE)
    return sent[1] if sent else str(error.args[0])


def innermost(collate: Callable) -> Callable:
    """Returns the collator inside the wrappers that remove columns and pad to buckets."""
    while inner := getattr(collate, "data_collator", None) or getattr(collate, "collator", None):
        collate = inner
    return collate


def is_of_transformers(collate: Callable) -> bool:
    """Returns True if transformers made the collator."""
    collate = innermost(collate)
    return str(getattr(collate, "__module__", type(collate).__module__)).startswith("transformers.")


def _reads(dataset: Any, row: int) -> bool:
    return _succeeds(lambda: dataset[row])


def _succeeds(work: Callable[[], Any]) -> bool:
    try:
        work()
    except Exception:
        return False
    return True


def tokenizing(column: str) -> str:
    """Returns the remedy for texts that reach no tokenizer."""
    return (
        f"Tokenize the texts first, as in dataset.map(lambda rows: tokenizer(rows[{column!r}], truncation=True), "
        "batched=True); or set remove_unused_columns=False if the data collator does it."
    )


def _giving(names: Sequence[str]) -> str:
    return (
        f"Give the dataset {_columns(names, 'a column', 'columns')}, or set remove_unused_columns=False if the data "
        f"collator makes {_it(names)}."
    )


def _columns(names: Sequence[str], one: str = "Column", several: str = "Columns") -> str:
    return f"{one if len(names) == 1 else several} {', '.join(map(repr, names))}"


def _it(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], str))
