"""The arguments change a run as in transformers, log for log."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from .conftest import assert_same_logs, bert_classifier, gpt2, sentences, texts
from .pairs import Net, rows

SETTINGS = {
    "defaults": {},
    "epochs": {"num_train_epochs": 2, "max_steps": -1, "logging_strategy": "epoch"},
    "evaluations": {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True},
    "delayed evaluations": {"eval_strategy": "epoch", "eval_delay": 1, "num_train_epochs": 3, "max_steps": -1},
    "label smoothing": {"label_smoothing_factor": 0.2},
    "tokens": {"include_num_input_tokens_seen": True},
    "tokens without padding": {"include_num_input_tokens_seen": "non_padding", "eval_strategy": "epoch"},
    "no clipping": {"max_grad_norm": 0.0},
    "autocast": {"bf16": True},
    "autocast and full evaluation": {"bf16": True, "bf16_full_eval": True, "eval_strategy": "epoch"},
    "emptied caches": {"torch_empty_cache_steps": 1},
    "activation checkpointing": {"activation_checkpointing": True},
    "cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 2},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_classifier_logs_what_it_logs_in_transformers(both, settings):
    def run(library):
        data = {"train_dataset": sentences(), "eval_dataset": sentences(9, seed=1)}
        trainer = library.trainer(bert_classifier(), trainer=data, **{"max_steps": 4, **settings})
        trainer.train()
        trainer.evaluate()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


def test_a_compiled_model_logs_what_it_logs_in_transformers(both):
    """A small one: torch takes seconds to trace a BERT."""

    def run(library):
        compiled = {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 4}
        data = {"train_dataset": rows(), "eval_dataset": rows(8)}
        trainer = library.trainer(Net(), trainer=data, **compiled)
        trainer.train()
        trainer.evaluate()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


LANGUAGE = {
    "defaults": {},
    "noise on the embeddings": {"neftune_noise_alpha": 5.0},
    "accumulation": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2},
    "accumulation with a short last update": {
        "gradient_accumulation_steps": 4, "per_device_train_batch_size": 3, "max_steps": -1, "num_train_epochs": 2
    },
    "label smoothing": {"label_smoothing_factor": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("settings", LANGUAGE.values(), ids=LANGUAGE.keys())
def test_a_language_model_logs_what_it_logs_in_transformers(both, settings):
    def run(library):
        trainer = library.trainer(gpt2(), trainer={"train_dataset": texts()}, **{"max_steps": 4, **settings})
        trainer.train()
        assert not trainer.model.get_input_embeddings()._forward_hooks
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


def test_noise_changes_the_losses(both):
    def run(library):
        trainer = library.trainer(
            gpt2(dropout=0.0), trainer={"train_dataset": texts()}, max_steps=2, neftune_noise_alpha=50.0
        )
        trainer.train()
        quiet = library.trainer(gpt2(dropout=0.0), trainer={"train_dataset": texts()}, max_steps=2)
        quiet.train()
        return abs(trainer.state.log_history[0]["loss"] - quiet.state.log_history[0]["loss"])

    theirs, ours = both(run)
    assert ours > 1e-3
    assert theirs > 1e-3


def test_memory_metrics_have_the_same_names(both):
    pytest.importorskip("psutil")

    def run(library):
        data = {"train_dataset": sentences(8), "eval_dataset": sentences(8)}
        trainer = library.trainer(bert_classifier(), trainer=data, max_steps=1, skip_memory_metrics=False)
        metrics = trainer.train().metrics
        return [list(metrics), list(trainer.evaluate()), list(trainer.predict(sentences(4)).metrics)]

    theirs, ours = both(run)
    assert ours == theirs
    assert "train_mem_cpu_alloc_delta" in ours[0]


def on_a_small_device(library, sizes):
    """A model on a device whose memory is too small for batches of 7 or more; Accelerate knows the words of cuda."""

    def take_memory(module, args, kwargs):
        sizes.append(len(kwargs["input_ids"]))
        if sizes[-1] >= 7:
            raise RuntimeError(
                "MPS backend out of memory (MPS allocated: 1 GB)" if library.is_ours else "CUDA out of memory."
            )

    model = bert_classifier()
    model.register_forward_pre_hook(take_memory, with_kwargs=True)
    return model


def test_a_batch_that_fits_is_found_and_the_updates_stay_as_asked(both):
    """transformers begins again with 8, 7 and 6 examples in an update; here an update keeps its 9, in two parts.

    On purpose: an update of 6 examples is not the one that was asked for, and the learning rate does not fit it.
    """

    def run(library):
        sizes = []
        trainer = library.trainer(
            on_a_small_device(library, sizes), trainer={"train_dataset": sentences()},
            auto_find_batch_size=True, per_device_train_batch_size=9, max_steps=3,
        )  # fmt: skip
        trainer.train()
        return sizes, trainer.state.train_batch_size, trainer.state.global_step

    theirs, ours = both(run)
    assert theirs == ([9, 8, 7, 6, 6, 6], 6, 3)
    assert ours == ([9, 5, 4, 5, 4, 3, 3], 5, 3)  # 24 examples: the third update of an epoch has 6


def test_running_out_of_memory_is_an_error_where_nobody_asked_for_a_smaller_batch(both):
    def run(library):
        model = on_a_small_device(library, [])
        data = {"train_dataset": sentences()}
        trainer = library.trainer(model, trainer=data, per_device_train_batch_size=9, max_steps=3)
        with pytest.raises(RuntimeError, match="out of memory"):
            trainer.train()

    both(run)


def test_multi_label_models_are_not_smoothed(both):
    def run(library):
        model = bert_classifier(labels=3)
        model.config.problem_type = "multi_label_classification"
        rows = [{**row, "labels": torch.tensor([1.0, 0.0, 1.0])} for row in sentences()]
        with pytest.warns(UserWarning, match="[lL]abel"):
            trainer = library.trainer(model, trainer={"train_dataset": rows}, label_smoothing_factor=0.1, max_steps=2)
        trainer.train()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


def test_a_second_run_goes_on_with_the_optimizer_and_begins_a_new_schedule(both):
    def run(library):
        trainer = library.trainer(bert_classifier(), trainer={"train_dataset": sentences()}, max_steps=3)
        trainer.train()
        optimizer = trainer.optimizer
        trainer.train()
        steps = {int(state["step"]) for state in trainer.optimizer.state.values()}
        return trainer.state.log_history, trainer.lr_scheduler.last_epoch, steps, type(optimizer).__name__

    theirs, ours = both(run)
    assert_same_logs(ours[0], theirs[0])
    assert ours[1:3] == theirs[1:3] == (3, {6})


def test_a_seed_set_between_two_runs_is_used(both):
    def run(library):
        data = {"train_dataset": sentences(), "model_init": lambda: bert_classifier()}
        trainer = library.trainer(trainer=data, max_steps=3)
        trainer.train()
        trainer.args.seed = 314
        trainer.train()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


class Plain(nn.Module):
    """Not a model of transformers, and without a configuration."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.table(input_ids).mean(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return (loss, logits) if loss is not None else (logits,)


def test_a_plain_module_trains_and_saves_as_in_transformers(both):
    def run(library):
        torch.manual_seed(1)
        data = {"train_dataset": sentences(), "eval_dataset": sentences(8)}
        trainer = library.trainer(Plain(), trainer=data, max_steps=3, include_num_input_tokens_seen="all")
        trainer.train()
        trainer.evaluate()
        trainer.save_model()
        return trainer.state.log_history, {path.name for path in library.folder.iterdir()}

    theirs, ours = both(run)
    assert_same_logs(ours[0], theirs[0])
    assert ours[1] == theirs[1]


def test_nan_losses_are_filtered_alike(both):
    class Nan(Plain):
        def forward(self, input_ids, attention_mask=None, labels=None):
            loss, logits = super().forward(input_ids, labels=labels)
            return (loss * float("nan") if bool((labels == 1).all()) else loss), logits

    def run(library):
        torch.manual_seed(1)
        rows = [{**row, "labels": int(i < 8)} for i, row in enumerate(sentences())]
        data = {"train_dataset": rows, "eval_dataset": rows}
        trainer = library.trainer(Nan(), trainer=data, max_steps=3, train_sampling_strategy="sequential")
        trainer.train()
        trainer.evaluate()
        return trainer.state.log_history

    theirs, ours = both(run)
    for mine, other in zip(ours, theirs, strict=True):
        assert math.isnan(mine.get("loss", 0)) == math.isnan(other.get("loss", 0))
    assert ours[-1]["eval_loss"] == pytest.approx(theirs[-1]["eval_loss"], nan_ok=True)


def test_memory_that_is_not_used_is_given_back_as_often_as_asked(make_trainer, monkeypatch):
    from mps_trainer import trainer as trainer_module

    given_back = []
    trainer = make_trainer(max_steps=5, torch_empty_cache_steps=2)
    monkeypatch.setattr(trainer_module, "release_buffers", lambda device: given_back.append(trainer.state.global_step))
    trainer.train()
    assert given_back == [0, 2, 4]


def test_an_image_processor_does_not_pad_batches(both):
    from transformers import BaseImageProcessor

    class Processor(BaseImageProcessor):
        def pad(self, *args, **kwargs):
            raise AssertionError("not for batches")

        def save_pretrained(self, *args, **kwargs):
            pass

    def run(library):
        data = {"train_dataset": sentences(), "processing_class": Processor()}
        trainer = library.trainer(bert_classifier(), trainer=data, max_steps=1)
        trainer.train()
        return trainer.data_collator

    theirs, ours = both(run)
    assert ours is theirs


def test_the_name_of_the_processing_class_in_transformers_4_is_there(make_trainer):
    trainer = make_trainer({"processing_class": "it"})
    with pytest.warns(FutureWarning, match="processing_class"):
        assert trainer.tokenizer == "it"
    trainer.tokenizer = "other"
    assert trainer.processing_class == "other"


def test_overflows_are_found_where_they_begin(both, capsys):
    def run(library):
        torch.manual_seed(1)
        model = Plain()
        trainer = library.trainer(
            model, trainer={"train_dataset": sentences()}, max_steps=2, debug="underflow_overflow"
        )
        model.head.weight.data.fill_(float("inf"))
        with pytest.raises(ValueError, match="inf/nan"):
            trainer.train()
        return "head Linear" in capsys.readouterr().out

    assert both(run) == (True, True)
