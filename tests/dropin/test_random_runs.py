"""Runs with arguments that are drawn at random: as in transformers, and the same if a signal stops them on the way.

RANDOM_RUNS=1000 sets the number of runs.
"""

import contextlib
import os
import random

import pytest
import torch

import mps_trainer
from tests.conftest import Stream, accuracy, assert_same_weights, weights

from .conftest import Library, assert_same, bert_classifier, gpt2, recorder, sentences, texts

SEEDS = range(int(os.environ.get("RANDOM_RUNS", "12")))
DRAWN = {
    "num_train_epochs": [1, 2, 2.5, 0.4],
    "per_device_train_batch_size": [1, 2, 4, 7],
    "per_device_eval_batch_size": [1, 3, 8],
    "learning_rate": [1e-3, 1e-2],
    "logging_steps": [1, 2, 0.3, 500],
    "logging_strategy": ["steps", "steps", "epoch", "no"],
    "logging_first_step": [True, False],
    "eval_strategy": ["no", "steps", "epoch"],
    "eval_steps": [2, 3, 0.25, None],
    "save_strategy": ["no", "steps", "epoch"],
    "save_steps": [2, 3, 0.25],
    "lr_scheduler_type": ["linear", "cosine", "constant_with_warmup", "inverse_sqrt"],
    "weight_decay": [0.0, 0.1],
    "max_grad_norm": [1.0, 0.1, 0.0],
    "optim": ["adamw_torch", "adamw_torch_fused", "sgd", "adafactor"],
}
SOMETIMES = {
    "max_steps": [1, 5, 9],
    "warmup_steps": [1, 0.2],
    "save_total_limit": [1, 2],
    "eval_on_start": [True],
    "eval_delay": [1, 2, 1.5],
    "eval_accumulation_steps": [1, 2],
    "dataloader_drop_last": [True],
    "train_sampling_strategy": ["sequential", "group_by_length"],
    "label_smoothing_factor": [0.1],
    "include_num_input_tokens_seen": ["all", "non_padding"],
    "data_seed": [7],
    "neftune_noise_alpha": [5.0],
    "activation_checkpointing": [True],
    "prediction_loss_only": [True],
    "remove_unused_columns": [False],
}
OURS = {
    "train_sampling_strategy": ["bucket_by_length"],
    "stop_on_nan": [True],
    "chunked_attention": [True],
    "skip_unread_tokens": [True],
    "auto_find_batch_size": [True],
    "save_async": [False],
}


def drawn(seed, *tables):
    """Returns the generator of the seed, settings for a Trainer, and a function that makes its model."""
    draw = random.Random(seed)
    settings = {name: draw.choice(values) for name, values in DRAWN.items()}
    for table in (SOMETIMES, *tables):
        settings |= {name: draw.choice(values) for name, values in table.items() if draw.random() < 0.2}
    settings["seed"] = draw.randrange(1000)
    make, rows = draw.choice([(bert_classifier, sentences), (gpt2, texts)])
    if make is gpt2:  # a BERT's losses of accumulated batches are added up in transformers
        settings["gradient_accumulation_steps"] = draw.choice([1, 2, 3])
    elif not settings.get("prediction_loss_only"):
        settings["compute_metrics"] = accuracy
    settings["train_dataset"] = rows(draw.choice([8, 16, 23]))
    settings["eval_dataset"] = rows(draw.choice([1, 9]), seed=1)
    if draw.random() < 0.15:
        settings |= {"train_dataset": Stream(settings["train_dataset"]), "max_steps": 9, "num_train_epochs": 1}
        settings |= {"gradient_accumulation_steps": 1, "train_sampling_strategy": "random"}
    if draw.random() < 0.2:
        settings["model_init"] = lambda: make()
    return draw, settings, make


@pytest.mark.parametrize("seed", SEEDS)
def test_run_with_random_arguments_is_that_of_transformers(assert_same_runs, seed):
    _, settings, make = drawn(seed)

    def run(library):
        events = []
        trainer = library.trainer(make(), callbacks=[recorder(events)], **settings)
        trainer.train()
        folders = sorted(os.listdir(library.folder)) if library.folder.exists() else []
        result = [trainer.state.log_history, events, [name for name in folders if "checkpoint-" in name]]
        if settings.get("train_sampling_strategy") == "group_by_length":  # transformers shuffles its predictions
            return result
        predicted = trainer.predict(settings["eval_dataset"])
        logits = [] if predicted.predictions is None else predicted.predictions.tolist()
        return [*result, logits, predicted.metrics]

    assert_same_runs(run, tolerance=2e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_run_with_random_arguments_that_signals_stop_equals_an_uninterrupted_one(tmp_path, seed):
    draw, settings, make = drawn(seed, OURS)

    def run(name, signal_at=None):
        library, events = Library(mps_trainer, tmp_path / name), []
        trainer = library.trainer(make(), callbacks=[recorder(events, signal_at)], **settings)
        trainer.train(resume_from_checkpoint=any(library.folder.glob("checkpoint-*")))
        logs = [entry for entry in trainer.state.log_history if "train_loss" not in entry]
        return logs, weights(trainer.model), len(events)

    logs, trained, events = run("whole")
    for _ in range(2):
        with contextlib.suppress(SystemExit):  # none if the resumed run has fewer events
            run("stopped", draw.randrange(2, events + 1))
        torch.manual_seed(99)
    resumed_logs, resumed, _ = run("stopped")
    assert_same(resumed_logs, logs, tolerance=0, resumed=True)
    assert_same_weights(resumed, trained)
