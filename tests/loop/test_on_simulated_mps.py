"""Training on the simulated device: how often it waits, and what it keeps."""

import gc

import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import Trainer
from mps_trainer.simulator import SimulationCallback
from tests import installed_torch
from tests.conftest import accuracy, examples
from tests.distributed.scenarios import padded
from tests.loop.test_length_buckets import parts
from tests.tiny import tiny


@pytest.fixture
def figures(mps, make_trainer):
    """Trains a few steps and gives the figures of each but the first, which makes the optimizer's state."""

    def train(steps=4, **settings):
        callback = SimulationCallback(mps)
        make_trainer(
            {"callbacks": [callback], "train_dataset": examples(8 * steps)},
            **{"max_steps": steps, "per_device_train_batch_size": 8, "logging_steps": 100, **settings},
        ).train()
        return callback.steps[1:]

    return train


@pytest.mark.parametrize(
    "settings", [{}, {"bf16": True}, {"fp16": True}, {"gradient_accumulation_steps": 2, "max_steps": 2}]
)
def test_a_training_step_never_waits_for_the_device(figures, settings):
    steps = figures(**settings)
    assert steps
    assert [step.blocking_reads for step in steps] == [0] * len(steps)
    assert [step.device_to_host for step in steps] == [0] * len(steps)
    assert steps[-1].new_graphs == 0  # every batch has the shapes of the first


def on_cpu(rows):
    with torch.device("cpu"):  # workers cannot send tensors of another device
        return padded(rows)


@pytest.mark.parametrize(
    ("strategy", "workers"), [("random", 0), ("random", 1), ("group_by_length", 0), ("bucket_by_length", 0)]
)
def test_a_run_resumes_with_mps_as_torchs_default_device(mps, assert_resumes, strategy, workers):
    saving = {"save_strategy": "steps", "save_steps": 5, "eval_strategy": "steps", "eval_steps": 4, "max_steps": 15}
    loading = {"dataloader_num_workers": workers, "dataloader_persistent_workers": bool(workers)}
    with torch.device("mps"):
        assert_resumes(
            5,
            lambda: {**parts(), "data_collator": on_cpu if workers else padded},
            train_sampling_strategy=strategy,
            **saving,
            **loading,
        )


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize(
    "settings", [{}, {"weight_decay": 0.1}, {"max_grad_norm": 0.0}, {"padding_free": False}], ids=str
)
def test_a_step_of_bert_is_one_copy_no_wait_and_few_operators(mps, make_args, padded, settings):
    real = [8 - (i % 4 if padded else 0) for i in range(24)]
    rows = [
        {"input_ids": [7] * n + [0] * (8 - n), "attention_mask": [1] * n + [0] * (8 - n), "labels": i % 2}
        for i, n in enumerate(real)
    ]
    most = 160 if installed_torch() >= (2, 15) else 165  # before, dropout was two operators
    most += 24 if padded and "padding_free" not in settings else 0  # nine a layer, and six around them
    callback = SimulationCallback(mps)
    args = make_args(max_steps=3, logging_steps=100, **settings)
    model = tiny("BertForSequenceClassification")
    Trainer(model, args, train_dataset=rows, callbacks=[callback]).train()
    for step in callback.steps[1:]:
        assert (step.blocking_reads, step.device_to_host, step.host_to_device) == (0, 0, 1)
        assert step.operators <= most  # 586 in a plain loop, 313 with transformers' Trainer


@pytest.mark.parametrize("settings", [{}, {"include_for_metrics": ["inputs", "loss"]}], ids=str)
def test_an_evaluation_waits_and_joins_outputs_as_often_for_many_batches_as_for_few(mps, make_trainer, settings):
    def reads(batches):
        trainer = make_trainer({"compute_metrics": accuracy, "eval_dataset": examples(8 * batches)}, **settings)
        trainer.model.main_input_name = "x"
        mps.reset()
        trainer.evaluate()
        report = mps.report()
        joins = next(each.calls for each in report.operators if each.name == "aten::cat")
        return report.blocking_reads, report.device_to_host, joins

    assert reads(12) == reads(3)
    assert reads(3)[0] == reads(3)[1] == 3 + ("include_for_metrics" in settings)  # losses, predictions, labels, inputs


def test_overrides_and_callbacks_get_batches_on_the_device_as_from_accelerate(mps, make_trainer):
    seen = []

    class Unprepared(Trainer):
        def get_batch_samples(self, epoch_iterator, num_batches, device):
            batch = next(epoch_iterator)
            return [{**batch, "x": batch["x"] + torch.zeros(8, 4, device=device)}], None

        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = model(**inputs)["loss"]
            loss.backward()
            return loss.detach()

        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            return model(**inputs)["loss"].detach(), None, None

    class Probe(TrainerCallback):
        def on_evaluate(self, args, state, control, model, train_dataloader, eval_dataloader, **kwargs):
            seen.extend(model(**next(iter(each)))["loss"].item() for each in (train_dataloader, eval_dataloader))

    make_trainer({"kind": Unprepared, "callbacks": [Probe]}, max_steps=2, eval_strategy="steps", eval_steps=2).train()
    assert len(seen) == 2


@pytest.mark.parametrize("name", ["_prepare_inputs", "_prepare_input", "training_step"])
def test_an_override_of_what_moves_batches_gets_them_on_the_device(mps, make_trainer, name):
    def step(model, inputs, num_items_in_batch):
        loss = model(**inputs)["loss"]
        loss.backward()
        return loss.detach()

    trainer = make_trainer(max_steps=1)
    setattr(trainer, name, step if name == "training_step" else lambda data: data)
    trainer.train()
    trainer.evaluate()


def test_metrics_of_batches_get_the_inputs_on_the_device(mps, make_trainer, make_model):
    model = make_model()
    model.main_input_name, wanted = "x", {"batch_eval_metrics": True, "include_for_metrics": ["inputs"]}
    metrics = {"compute_metrics": lambda prediction, compute_result: {"on_mps": prediction.inputs["x"].is_mps}}
    trainer = make_trainer({"model": model, **metrics}, **wanted)
    assert trainer.evaluate()["eval_on_mps"]


def test_memory_does_not_grow_from_log_to_log(figures):
    gc.collect()  # earlier tests left tensors, which would be freed in between
    live = [step.bytes_live for step in figures(steps=6, logging_steps=1)]
    assert live[1:] == live[:1] * 4
