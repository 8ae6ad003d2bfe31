"""The arguments change a run as in transformers: the logs are the same."""

import pytest
import torch
from torch import nn
from transformers import BaseImageProcessor

from mps_trainer import trainer as trainer_module
from tests.conftest import refusal

from .conftest import bert_classifier, gpt2, sentences, texts


def trained(library, model=None, data=sentences, **settings):
    given = {"train_dataset": data(), "eval_dataset": data(9, seed=1), "max_steps": 4}
    return library.trained(model, **{**given, **settings})


SETTINGS = {
    "defaults": {},
    "tokens": {"include_num_input_tokens_seen": True},
    "tokens without padding": {"include_num_input_tokens_seen": "non_padding", "eval_strategy": "epoch"},
    "autocast": {"bf16": True},
    "autocast and full evaluation": {"bf16": True, "bf16_full_eval": True, "eval_strategy": "epoch"},
    "emptied caches": {"torch_empty_cache_steps": 1},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_classifier_has_same_logs(assert_same_runs, settings):
    assert_same_runs(lambda library: trained(library, evaluate=True, **settings))


def test_compiled_model_has_same_logs(assert_same_runs):
    compiled = {"torch_compile": True, "torch_compile_backend": "eager"}  # torch takes seconds to trace a BERT
    assert_same_runs(lambda library: trained(library, Plain(), evaluate=True, **compiled))


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
def test_language_model_has_same_logs(assert_same_runs, settings):
    ours = assert_same_runs(lambda library: trained(library, gpt2(), texts, evaluate=True, **settings))
    assert not ours.model.get_input_embeddings()._forward_hooks


def test_noise_on_embeddings_equals_transformers_to_the_last_bit(both):
    def run(library):
        model = gpt2()
        trained(library, model, texts, neftune_noise_alpha=3.0, optim="sgd")  # float64 rounds 3 / sqrt(160) otherwise
        return torch.cat([weights.flatten() for weights in model.state_dict().values()])

    assert torch.equal(*both(run))


def test_memory_metrics_have_same_names(assert_same_runs):
    pytest.importorskip("psutil")

    def run(library):
        trainer = library.trainer(max_steps=1, skip_memory_metrics=False)
        metrics = trainer.train().metrics
        return [list(metrics), list(trainer.evaluate()), list(trainer.predict(sentences(4)).metrics)]

    assert "train_mem_cpu_alloc_delta" in assert_same_runs(run)[0]


def test_labels_of_multi_label_model_are_not_smoothed(assert_same_runs):
    def run(library):
        model = bert_classifier(labels=3)
        model.config.problem_type = "multi_label_classification"
        data = [{**row, "labels": torch.tensor([1.0, 0.0, 1.0])} for row in sentences()]
        with pytest.warns(UserWarning, match="[lL]abel"):
            return library.trained(model, train_dataset=data, label_smoothing_factor=0.1, max_steps=2)

    assert_same_runs(run)


def test_seed_set_between_two_runs_is_used(assert_same_runs):
    def run(library):
        trainer = library.trained(model_init=lambda: bert_classifier(), max_steps=3)
        trainer.args.seed = 314
        trainer.train()
        return trainer

    assert_same_runs(run)


class Plain(nn.Module):
    """A model that is not of transformers, and has no configuration."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(64, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.table(input_ids).mean(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return (loss, logits) if loss is not None else (logits,)


def test_plain_module_has_same_logs_and_files(assert_same_runs):
    def run(library):
        trainer = trained(library, Plain(), evaluate=True, include_num_input_tokens_seen="all")
        trainer.save_model()
        return trainer, {path.name for path in library.folder.iterdir()}

    assert_same_runs(run)


def test_nan_losses_are_filtered_as_in_transformers(assert_same_runs):
    class Nan(Plain):
        def forward(self, input_ids, attention_mask=None, labels=None):
            loss, logits = super().forward(input_ids, labels=labels)
            return (loss * float("nan") if bool((labels == 1).all()) else loss), logits

    def data(count=24, seed=0):
        return [{**row, "labels": int(i < 8)} for i, row in enumerate(sentences(count, seed=seed))]

    settings = {"train_sampling_strategy": "sequential", "max_steps": 3}
    assert_same_runs(lambda library: trained(library, Nan(), data, evaluate=True, **settings))


def test_torch_empty_cache_steps_frees_memory_every_few_steps(make_trainer, monkeypatch):
    freed = []
    trainer = make_trainer(max_steps=5, torch_empty_cache_steps=2)
    monkeypatch.setattr(trainer_module, "release_buffers", lambda device: freed.append(trainer.state.global_step))
    trainer.train()
    assert freed == [0, 2, 4]


def test_image_processor_does_not_pad_batches(assert_same_runs):
    class Processor(BaseImageProcessor):
        def pad(self, *args, **kwargs):
            raise AssertionError("not for batches")

        def save_pretrained(self, *args, **kwargs):
            pass

    assert_same_runs(lambda library: library.trained(processing_class=Processor(), max_steps=1).data_collator)


def test_underflow_overflow_debugging_names_the_module(both, capsys):
    def run(library):
        model = Plain()
        model.head.weight.data.fill_(float("inf"))
        assert "inf/nan" in refusal(trained, library, model, debug="underflow_overflow", kind=ValueError)
        return "head Linear" in capsys.readouterr().out

    assert both(run) == (True, True)


@pytest.mark.parametrize(("model", "rows"), [(gpt2, texts), (bert_classifier, sentences)])
def test_a_loss_gets_the_same_number_of_items(both, model, rows):
    """transformers divides by the devices that share a batch, from 5.23 on without rounding. Here none share one."""

    def run(library):
        seen = []

        def loss(outputs, labels, num_items_in_batch=None):
            seen.append(num_items_in_batch)
            return outputs["logits"].float().square().sum() / num_items_in_batch

        settings = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 5, "num_train_epochs": 2}
        library.trained(model(), train_dataset=rows(), eval_dataset=None, compute_loss_func=loss, **settings)
        return seen

    theirs, ours = both(run)
    assert [float(each) for each in ours] == [float(each) for each in theirs]
    assert len({float(each) for each in ours}) > 1  # the last update of an epoch has one batch
    assert {each.dim() for each in (*ours, *theirs)} == {0}
    assert not ours[0].is_floating_point()  # a count, exact beyond 2**24 too
