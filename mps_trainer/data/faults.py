"""Finds after a failure which rows of the dataset a batch has, and which row, column or worker is at fault."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

from torch.utils.data import IterableDataset

from ..errors import MisconfigurationException, explain
from .columns import ColumnRemover, is_table
from .missing_columns import innermost, is_of_transformers, missing_key

_MOST_TRIED = 256  # rows in a batch, up to which each is tried by itself
_MOST_NAMED = 32  # rows that a message names
_DEAD_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")
# pickle's words for an object that is defined inside a function, in each Python from 3.10 on
_LOCAL = re.compile(r"(?:(?P<outer>\w+)\.<locals>\.)?(?P<name><lambda>|(?<=<locals>\.)\w+\b)(?!\.<locals>)")
_CAUSES = {
    "SIGKILL": "the system ends processes this way when memory runs out",
    "SIGBUS": "shared memory was too small for the batches",
    "SIGSEGV": "a library that it uses has crashed",
}


def explain_loading(error: Exception, loader: Any, batches: Any, number: int) -> None:
    """Explains `error`, raised when batch `number` of `batches`, torch's iterator over `loader`, was loaded."""
    try:
        text = _why_files_ran_out(error, loader) or why_worker_died(error, batches)
        text = text or _why_batch_failed(error, loader, number)
    except Exception as another:  # a search for the fault must not hide the fault; a worker's death is heard anywhere
        text = why_worker_died(another, batches)
    if text is not None:
        explain(error, text)


# Workers


def why_worker_died(error: BaseException, batches: Any) -> str | None:
    """Returns which worker of a DataLoader ended, how it ended, and what to do. None for other errors.

    torch reports it, unless it fetches a batch that the worker had sent: then a connection breaks.
    """
    match = _DEAD_WORKER.search(str(error))
    workers = list(getattr(batches, "_workers", []))
    if match is None and not (isinstance(error, (OSError, EOFError)) and _one_ends(workers)):
        return None
    dead = [(i, worker) for i, worker in enumerate(workers) if worker.exitcode]
    ends = [f"worker {i} of {len(workers)} (process {worker.pid}) {_end(worker.exitcode)}" for i, worker in dead]
    how = f": {', '.join(ends)}" if ends else ""
    by_itself = bool(dead) and all(worker.exitcode > 0 for _, worker in dead)
    to_module = "move the classes and functions of the dataset and the collator to a .py file, and import them from it"
    has_script = hasattr(sys.modules["__main__"], "__file__")  # else what cells define is unknown to spawned workers
    remedy = (
        "read the error that it printed above; dataloader_num_workers=0 loads in this process instead"
        + ("" if has_script else f"; if a notebook's function or class is not found, {to_module}")
        if by_itself
        else "use fewer workers, or dataloader_num_workers=0, which loads in this process and shows an error of the "
        "dataset's own; smaller batches, or more shared memory, if memory ran out"
    )
    return f"A worker of the DataLoader is gone{how}. What to do: {remedy}."


def refuse_in_starting_process() -> None:
    """Raises MisconfigurationException where a spawned process imports the script, and the script trains at once."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # multiprocessing itself asks so
        raise MisconfigurationException(
            "A process that loads data has imported this script, and the script has begun to train again. Put its "
            "work under `if __name__ == '__main__':`, so that it runs once; or give dataloader_num_workers=0. Such "
            "processes are spawned on a Mac, and from Python 3.14 on elsewhere too."
        )


def _why_files_ran_out(error: BaseException, loader: Any) -> str | None:
    """Returns what to do if this process or a worker may open no further file; None for other errors."""
    if "Too many open files" not in str(error) or not loader.num_workers:
        return None
    import resource  # Windows has none

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"Too many files are open: this process may open {limit:,}, and {loader.num_workers} workers need more for "
        "their pipes and the batches on their way. What to do: raise the limit with `ulimit -n 4096` before the "
        "start, or use fewer workers with dataloader_num_workers."
    )


def explain_starting(error: Exception, loader: Any) -> None:
    """Explains `error`, raised when workers were to start, if files ran out or something could not be pickled."""
    if (text := _why_files_ran_out(error, loader)) is not None:
        explain(error, text)
    elif isinstance(error, pickle.PicklingError) or re.search(r"pickle|local object", str(error)):
        fault = "an object that the dataset or the collator holds cannot be sent to them"
        remedy = "make it in the worker, as in __getitem__"
        if (local := _LOCAL.search(str(error))) is not None:
            name = "a lambda" if local["name"] == "<lambda>" else local["name"]
            fault = f"cannot import {name}" + (f" inside {local['outer']}" if local["outer"] else "")
            remedy = "define it at the top of a module, with functools.partial for the values that it needs"
        explain(
            error,
            f"The processes that load data are spawned, as on every Mac, and {fault}. What to do: {remedy}; or "
            "dataloader_num_workers=0.",
        )


@contextlib.contextmanager
def no_advice_to_fork() -> Iterator[None]:
    """Silences torch's warning that advises to fork: forked processes may abort on a Mac."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Got pickle error when attempting to start a worker")
        yield


def explain_worker(error: Exception, batches: Any) -> None:
    """Explains `error` if a worker has died, which interrupts whatever this process does."""
    if (text := why_worker_died(error, getattr(batches, "_batches", None))) is not None:
        explain(error, text)


def _one_ends(workers: list[Any]) -> bool:
    """Returns True if a worker has failed, or fails within a second: its connections close before it ends."""
    deadline = time.monotonic() + (1.0 if workers else 0.0)
    while not (found := any(worker.exitcode for worker in workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _end(exitcode: int) -> str:
    if exitcode > 0:
        return f"ended with exit status {exitcode}"
    # real-time signals have no names
    name = next((each.name for each in signal.Signals if each == -exitcode), f"signal {-exitcode}")
    return f"was ended by {name}" + (f": {_CAUSES[name]}" if name in _CAUSES else "")


# Rows


def rows_of_batches(loader: Any, epoch: int, first: int, count: int = 1) -> list[int] | None:
    """Returns the indices of the rows of `count` batches of an epoch, from batch number `first` (from 0) on.

    None where they are not recorded: a stream, a loader of another class, a batch of long ago.
    """
    recorded, numbers = getattr(loader, "rows", {}), range(first, first + count)
    if any((epoch, number) not in recorded for number in numbers):
        return None
    return [row for number in numbers for row in recorded[epoch, number]]


def naming(rows: list[int]) -> str:
    """Returns `rows` in words: "row 7", "rows 3, 5, 9", and the number of the rest if there are many."""
    named = ", ".join(map(str, rows[:_MOST_NAMED]))
    more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    return f"row{'s' if len(rows) != 1 else ''} {named}{more}"


def _why_batch_failed(error: Exception, loader: Any, number: int) -> str | None:
    if isinstance(loader.dataset, IterableDataset):
        kind = type(loader.dataset).__name__
        why = _why_stream_failed(error, loader)
        return why or f"Batch {number} of the epoch, counted from 0, could not be made from the stream {kind}."
    is_in_order = loader.in_order or not loader.num_workers
    rows = rows_of_batches(loader, loader.iteration, number) if is_in_order else None
    return None if rows is None else _find(loader, rows)


def _why_stream_failed(error: Exception, loader: Any) -> str | None:
    """Returns why the collator failed if it asked for a removed column. The stream's rows cannot be read again."""
    columns, collate = loader.columns, loader.collate_fn
    if columns is None or not isinstance(collate, ColumnRemover):
        return None
    if collate.example is not None:
        return columns.why_collator_fails(error, collate.data_collator, [collate.example])
    removed = columns.removed([name for name in (missing_key(error),) if name is not None])
    return columns.why_needed(removed, "the data collator") if removed else None


def _find(loader: Any, rows: list[int]) -> str:
    """Returns the fault of a batch of `rows`, found by collating it again, without single rows and columns."""
    dataset, collate, columns, whole = loader.dataset, loader.collate_fn, loader.columns, loader.made_for
    batched = loader.batch_size is not None or loader.batch_sampler is not None
    examples = []
    for row in rows:
        try:
            examples.append(dataset[row])
        except Exception as error:
            is_reduced = columns is not None and is_table(whole)
            return (is_reduced and columns.why_row_fails(error, whole, dataset, row)) or (
                f"Row {row} of the dataset cannot be read. It was loaded for a batch of {naming(rows)}. Fix that row "
                "or leave it out."
            )
    failed: list[Exception] = []

    def works(some: list[Any]) -> bool:
        try:
            collate(some if batched else some[0])
        except Exception as error:
            if _DEAD_WORKER.search(str(error)):
                raise
            failed.append(error)
            return False
        return True

    begin = f"A batch could not be made from {naming(rows)} of the dataset"
    if works(examples):
        return f"{begin} at first, and could be made when it was tried again. What to do: see what else it depends on."
    if columns is not None and batched:
        with_all = collate.data_collator if isinstance(collate, ColumnRemover) else collate
        if why := columns.why_collator_fails(failed[0], with_all, [whole[row] for row in rows]):
            return why
    if ragged := _unpadded(collate, examples):
        return (
            f"{begin}, because nothing pads column{'s' * (len(ragged) > 1)} {', '.join(map(repr, ragged))}, whose "
            "lists differ in length: the Trainer was given no tokenizer. Give it processing_class=tokenizer, or a "
            "data_collator that pads."
        )
    if why := _without_names(loader, examples):
        return f"{begin}, because {why}"
    culprits, column = _culprits(examples, works), _column(examples, works)
    if culprits and column is None:
        column = _column([examples[i] for i in culprits], works)
    found = [naming([rows[i] for i in culprits])] if culprits else []
    if column is not None:
        found.append(f"column {column!r} ({_oddity(examples, culprits, column)})")
    at_fault = f" because of {', '.join(found)}" if found else ""
    todo = "Fix or leave out what is at fault" if found else "Look at these rows"
    return f"{begin}{at_fault}. {todo}, or give the Trainer a data_collator that makes what forward() takes of it."


def _unpadded(collate: Callable, examples: list[Any]) -> list[str]:
    """Returns the columns that differ in length, if tokens are among them and the Trainer was given no tokenizer."""
    from transformers.data.data_collator import default_data_collator

    if innermost(collate) is not default_data_collator or not all(isinstance(each, Mapping) for each in examples):
        return []
    columns = {name: [example.get(name) for example in examples] for name in examples[0]}
    ragged = [name for name, values in columns.items() if len({len(v) for v in values if isinstance(v, Sized)}) > 1]
    return ragged if "input_ids" in ragged else []


def _without_names(loader: Any, examples: list[Any]) -> str | None:
    """Returns which rows to give if transformers' collator gets rows without names, else None."""
    if not isinstance(examples[0], (str, tuple, list)) or not is_of_transformers(loader.collate_fn):
        return None
    names = "" if loader.columns is None else f": {', '.join(loader.columns.named)}"
    begin = "Tokenize the texts, and give" if isinstance(examples[0], str) else "Give"
    rows = "the rows are texts" if isinstance(examples[0], str) else f"each row is a {type(examples[0]).__name__}"
    return (
        f"{rows}, and the data collator needs names. {begin} the Trainer dictionaries with the names that "
        f"forward() takes{names}; or give it a data_collator that makes them."
    )


def _culprits(examples: list[Any], works: Callable[[list[Any]], bool]) -> list[int]:
    """Returns the positions of the examples that fail alone, or of the one without which the others do not fail."""
    if not 1 < len(examples) <= _MOST_TRIED:
        return [0] if len(examples) == 1 else []
    alone = [i for i, example in enumerate(examples) if not works([example])]
    if alone:
        return alone if len(alone) < len(examples) else []
    without = [i for i in range(len(examples)) if works(examples[:i] + examples[i + 1 :])]
    return without if len(without) == 1 else []


def _column(examples: list[Any], works: Callable[[list[Any]], bool]) -> str | None:
    """Returns the column without which `examples` can be collated; None if there is none."""
    if not all(isinstance(example, Mapping) for example in examples):
        return None
    for name in dict.fromkeys(name for example in examples for name in example):
        if works([{key: value for key, value in example.items() if key != name} for example in examples]):
            return str(name)
    return None


def _oddity(examples: list[Any], culprits: list[int], column: str) -> str:
    """Returns the kind of the column in the examples at fault, and in the others if that differs."""
    kinds = [_kind(example[column]) if column in example else "missing" for example in examples]
    others = Counter(kind for i, kind in enumerate(kinds) if i not in culprits).most_common()
    if not culprits:
        return ", ".join(kind for kind, _ in others)
    own, usual = kinds[culprits[0]], others[0][0] if others else None
    return own if usual in (None, own) else f"{own}; in the others {usual}"


def _kind(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    return "None" if value is None else "text" if isinstance(value, str) else f"of type {type(value).__name__}"
