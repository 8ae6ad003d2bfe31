"""A batch that cannot be loaded: the error stays what it is, and says which row, column or worker is to blame."""

import functools
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from torch import nn

from mps_trainer.data.epoch_loader import EpochLoader
from mps_trainer.data.faults import explain_loading, explain_starting, why_worker_died
from mps_trainer.errors import explanation_of
from tests.conftest import Stream, assert_same_weights, examples, refusal, weights

SAVING = {"max_steps": 5, "save_strategy": "steps", "save_steps": 1}


class Rows(torch.utils.data.Dataset):
    """40 examples; `fails(row)` is called before one is read."""

    def __init__(self, fails=id):
        self.rows, self.fails = examples(40), fails

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        self.fails(row)
        return self.rows[row]


def unreadable(row):
    if row == 17:
        raise LookupError("no file for this row")


def end_worker(signum, row):
    """Ends the worker that reads row 17 with a signal, or with exit status 3 if there is none."""
    if row == 17 and torch.utils.data.get_worker_info() is not None:
        os._exit(3) if signum is None else os.kill(os.getpid(), signum)


def rows_with(trainer, row=17):
    """The rows that are loaded together with `row` in the first epoch, as they are named."""
    batches = trainer.get_train_dataloader().batch_sampler
    return ", ".join(map(str, next(batch for batch in batches if row in batch)))


def fault(trainer, kind, **kwargs):
    with pytest.raises(kind) as caught:
        trainer.train(**kwargs)
    explanation = explanation_of(caught.value)
    assert explanation is not None
    assert "\n" not in explanation
    assert f"{type(caught.value).__name__}: " not in explanation  # it stands below
    has_checkpoint = any(Path(trainer.args.output_dir).glob("checkpoint-*"))
    assert ("resume_from_checkpoint=True resumes from " in explanation) == has_checkpoint
    assert "checkpoints are valid" not in explanation
    if hasattr(caught.value, "__notes__"):  # before 3.11 there are none
        assert caught.value.__notes__ == [explanation]
    return caught.value, explanation


@pytest.fixture
def impatient(monkeypatch):
    """torch waits 5 seconds for each worker whose dataset has raised before it ends the worker."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    yield
    gc.collect()  # it ends them then


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_that_cannot_be_read_is_named_and_the_run_can_go_on(make_trainer, trained, tmp_path, workers):
    settings = {**SAVING, "dataloader_num_workers": workers}
    trainer = make_trainer({"train_dataset": Rows(unreadable)}, **settings)
    rows = rows_with(trainer)
    error, explanation = fault(trainer, LookupError)
    assert type(error) is LookupError
    assert explanation.startswith("Row 17 of the dataset cannot be read. ")
    assert "no file for this row" in str(error)
    assert f"a batch of rows {rows}." in explanation
    found = []
    for out in ("run", "whole"):
        mended = trained({"train_dataset": Rows()}, resume=out == "run", output_dir=str(tmp_path / out), **settings)
        found.append(weights(mended.model))
    assert_same_weights(*found)
    trainer = make_trainer({"train_dataset": Rows(unreadable), "eval_dataset": Rows(unreadable)}, max_steps=5)
    for run in (trainer.train, trainer.evaluate):  # the checkpoints in the folder are of another run
        with pytest.raises(LookupError) as caught:
            run()
        explanation = explanation_of(caught.value)
        assert explanation.startswith("Row 17 of the dataset cannot be read. ")
        assert explanation.endswith("Fix that row or leave it out.")  # there is no run to resume


@pytest.mark.parametrize(
    ("changes", "at_fault"),
    [
        ({"x": torch.ones(3)}, "row 17, column 'x' (float32 of shape [3]; in the others float32 of shape [4])"),
        ({"x": "abc"}, "row 17, column 'x' (text; in the others float32 of shape [4])"),
        ({"labels": None}, "row 17, column 'labels' (None; in the others of type int)"),
        ({"labels": ...}, "row 17, column 'labels' (missing; in the others of type int)"),
    ],
)
def test_a_row_that_does_not_fit_the_others_is_named_with_its_column(make_trainer, changes, at_fault):
    rows = examples(40)
    rows[17] = {name: value for name, value in {**rows[17], **changes}.items() if value is not ...}
    trainer = make_trainer({"train_dataset": rows}, max_steps=5)
    _, explanation = fault(trainer, Exception)
    said = f"A batch could not be made from rows {rows_with(trainer)} of the dataset because of {at_fault}. "
    assert explanation.startswith(said)


def test_a_column_that_no_row_can_have_is_named_without_a_row(make_trainer):
    rows = Dataset.from_list([{"x": [float(i)] * 4, "labels": [0] * (i % 3 + 1)} for i in range(40)])
    _, explanation = fault(make_trainer({"train_dataset": rows}, max_steps=2), ValueError)
    assert "of the dataset because of column 'labels' (a list of" in explanation


@pytest.mark.parametrize("strategy", ["random", "bucket_by_length"])
@pytest.mark.parametrize("kind", [list, Dataset.from_list], ids=["list", "table"])
def test_texts_that_nothing_pads_are_told_to_need_a_tokenizer(make_trainer, kind, strategy):
    class Reader(nn.Linear):
        def forward(self, input_ids, attention_mask, labels): ...

    lengths = [4] * 7 + [5]  # the longer text is not at fault
    rows = [{"input_ids": [1] * n, "attention_mask": [1] * n, "labels": 0} for n in lengths]
    given = {"train_dataset": kind(rows), "model": Reader(1, 1)}
    _, explanation = fault(make_trainer(given, max_steps=1, train_sampling_strategy=strategy), ValueError)
    assert "because nothing pads columns 'input_ids', 'attention_mask', whose lists differ in length: " in explanation
    assert explanation.endswith("Give it processing_class=tokenizer, or a data_collator that pads.")


@pytest.mark.usefixtures("impatient")
def test_rows_are_named_in_an_order_of_ones_own_and_after_a_skip(make_trainer, tmp_path):
    settings = {**SAVING, "per_device_train_batch_size": 4, "max_steps": 8, "train_sampling_strategy": "sequential"}
    make_trainer({"train_dataset": Rows()}, **settings).train()
    for workers in (0, 1):
        trainer = make_trainer({"train_dataset": Rows(unreadable)}, **settings, dataloader_num_workers=workers)
        folder = os.path.join(trainer.args.output_dir, "checkpoint-2")
        _, explanation = fault(trainer, LookupError, resume_from_checkpoint=folder)
        assert "a batch of rows 16, 17, 18, 19." in explanation


def test_a_fault_that_does_not_come_again_is_called_so(make_trainer):
    failures = iter([LookupError("the disk was away")])

    def now_and_then(row):
        for error in failures if row == 17 else ():
            raise error

    _, explanation = fault(make_trainer({"train_dataset": Rows(now_and_then)}, max_steps=5), LookupError)
    assert "at first, and could be made when it was tried again. What to do: " in explanation


def test_a_stream_is_told_by_its_batch(make_trainer):
    def rows():
        yield from examples(20)
        raise ConnectionError("the line is dead")

    trainer = make_trainer({"train_dataset": Stream(rows())}, max_steps=8)
    _, explanation = fault(trainer, ConnectionError)
    assert explanation.startswith("Batch 2 of the epoch, counted from 0, could not be made from the stream Stream.")


WITHOUT_A_NAME = pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="macOS has no real-time signals.")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("signum", "how", "remedy"),
    [
        (signal.SIGKILL, "was ended by SIGKILL: the system ends", "use fewer workers"),
        pytest.param(40, "was ended by signal 40", "use fewer workers", marks=WITHOUT_A_NAME),
        (None, "ended with exit status 3", "read the error that it printed above"),
    ],
)
def test_a_worker_that_dies_is_named_and_the_run_can_go_on(make_trainer, signum, how, remedy):
    settings = {**SAVING, "dataloader_num_workers": 1}
    trainer = make_trainer({"train_dataset": Rows(functools.partial(end_worker, signum))}, **settings)
    _, explanation = fault(trainer, (RuntimeError, OSError, EOFError))
    assert explanation.startswith("A worker of the DataLoader is gone: worker ")
    for said in (" worker 0 of 1 (process ", how, remedy, "dataloader_num_workers=0"):
        assert said in explanation
    assert why_worker_died(RuntimeError("out of memory"), None) is None
    mended = make_trainer({"train_dataset": Rows()}, **{**SAVING, "dataloader_num_workers": 0})
    begun = bool(os.listdir(mended.args.output_dir))
    assert mended.train(resume_from_checkpoint=begun or None).global_step == 5


@pytest.mark.parametrize("in_notebook", [False, True])
def test_a_worker_that_misses_what_a_cell_defines_is_explained(monkeypatch, in_notebook):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "train.py", raising=False)
    if in_notebook:
        monkeypatch.delattr(main, "__file__")
    batches = SimpleNamespace(_workers=[SimpleNamespace(pid=7, exitcode=1)])
    text = why_worker_died(RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), batches)
    assert ("a notebook's function or class" in text) == in_notebook


def test_a_collator_that_cannot_be_sent_to_a_spawned_worker_is_explained(make_trainer):
    trainer = make_trainer(
        {"data_collator": lambda rows: rows}, dataloader_num_workers=1, dataloader_multiprocessing_context="spawn"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's own advice is to fork, which may abort on a Mac
        with pytest.raises((pickle.PicklingError, AttributeError)) as caught:
            trainer.train()
    assert explanation_of(caught.value) == LOCAL.format(
        "a lambda inside test_a_collator_that_cannot_be_sent_to_a_spawned_worker_is_explained"
    )


LOCAL = (
    "The processes that load data are spawned, as on every Mac, and cannot import {}. What to do: define it at the "
    "top of a module, with functools.partial for the values that it needs; or dataloader_num_workers=0."
)
HELD = (
    "The processes that load data are spawned, as on every Mac, and an object that the dataset or the collator holds "
    "cannot be sent to them. What to do: make it in the worker, as in __getitem__; or dataloader_num_workers=0."
)


@pytest.mark.parametrize(
    ("error", "explanation"),
    [
        (AttributeError("Can't pickle local object 'main.<locals>.collate'"), LOCAL.format("collate inside main")),
        (AttributeError("Can't get local object 'main.<locals>.collate'"), LOCAL.format("collate inside main")),
        (
            pickle.PicklingError("Can't pickle local object <function A.f.<locals>.g.<locals>.h at 0x7f1c>"),
            LOCAL.format("h inside g"),
        ),
        (
            pickle.PicklingError("Can't pickle <class '__main__.make.<locals>.Rows'>: it's not found as ..."),
            LOCAL.format("Rows inside make"),
        ),
        (
            pickle.PicklingError("Can't pickle <function <lambda> at 0x7f1c>: attribute lookup <lambda> on t failed"),
            LOCAL.format("a lambda"),
        ),
        (TypeError("cannot pickle 'generator' object"), HELD),
        (RuntimeError("no such file"), None),
    ],
    ids=str,
)
def test_object_that_cannot_be_sent_to_a_worker_is_named(error, explanation):
    explain_starting(error, SimpleNamespace(num_workers=2))
    assert explanation_of(error) == explanation


@pytest.mark.parametrize("free", [2, 14])
def test_workers_that_need_more_files_than_may_be_open_are_explained(make_trainer, monkeypatch, free):
    """The files run out when the first worker starts, and when another one does."""
    resource = pytest.importorskip("resource")
    trainer = make_trainer(max_steps=2, dataloader_num_workers=32)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    iterator = EpochLoader.iterate_once
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def begin(loader, **given):
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free, before[1]))
        try:
            return iterator(loader, **given)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    # torch says so as a RuntimeError of its own when the batches do; no row is to blame, and none is loaded again
    error = RuntimeError("Too many open files. Communication with the workers is no longer possible.")
    explain_loading(error, trainer.get_train_dataloader(), None, 0)
    monkeypatch.setattr(EpochLoader, "iterate_once", begin)
    for explanation in (explanation_of(error), fault(trainer, OSError)[1]):
        assert explanation.startswith("Too many files are open: this process may open ")
        assert "and 32 workers need more" in explanation
        assert "`ulimit -n 4096`" in explanation
        assert "\n" not in explanation


def test_a_spawned_process_that_imports_a_script_does_not_train(make_trainer, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    assert "under `if __name__ == '__main__':`" in refusal(make_trainer(max_steps=1).train)
