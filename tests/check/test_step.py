"""One step of a Trainer: all of its parts are seen, and the Trainer stays as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import MisconfigurationException, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer
from mps_trainer.check import Support, trace_step

from ..conftest import Classifier, accuracy, assert_same_weights, examples, weights
from .conftest import bad, names, reads, what_to_do


@pytest.fixture
def bert():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=32, max_position_embeddings=16, **sizes))


def sentences(count: int, length: int = 6) -> list[dict]:
    row = {"input_ids": list(range(1, length + 1)), "attention_mask": [1] * length}
    return [{**row, "labels": i % 2} for i in range(count)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bf16": True},
        {"fp16": True},
        {"optim": "sgd"},
        {"optim": "adamw_torch"},
        {"gradient_accumulation_steps": 3},
        {"gradient_checkpointing": True},
        {"max_grad_norm": 0.0},
        {"label_smoothing_factor": 0.1},
    ],
    ids=str,
)
def test_a_bert_is_ready(bert, make_trainer, settings):
    data = {"model": bert, "train_dataset": sentences(48), "eval_dataset": sentences(8), "compute_metrics": accuracy}
    report = trace_step(make_trainer(trainer=data, **settings))
    assert report.ready, report
    assert bad(report) == set()
    assert {use.phase for use in report.operators} == {"forward", "backward", "optimizer", "evaluation"}
    assert report.exit_code == 0
    assert report.notes == []
    assert len(report.batch_shapes) == 1
    assert report.batch_shapes[0]["input_ids"] == "int64[8, 6]"


@pytest.mark.parametrize("batches", [1, 2])
def test_the_number_of_items_that_a_model_divides_by_is_not_read_from_the_device(make_trainer, batches):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    rows = [{**row, "labels": row["input_ids"]} for row in sentences(16)]
    data = {"model": model, "train_dataset": rows, "eval_dataset": rows}
    trainer = make_trainer(trainer=data, gradient_accumulation_steps=batches)
    assert reads(trace_step(trainer)) == []


class SomeRows(Classifier):
    """A loss over the rows that a mask picks: mps waits for their number in the forward and the backward pass."""

    def forward(self, x, labels):
        logits = super().forward(x)["logits"]
        picked = logits[labels >= 0]  # the line to be named
        return {"loss": picked.square().mean(), "logits": logits}


def test_a_wait_in_the_gradient_of_the_models_loss_is_at_the_line_of_the_model(make_trainer):
    report = trace_step(make_trainer(trainer={"model": SomeRows(), "eval_dataset": None}))
    assert {read.phase for read in report.blocking_reads} == {"forward", "backward"}
    assert {text.partition("# ")[2] for _, _, text in reads(report)} == {"the line to be named"}


def test_masks_of_a_generation_are_built_without_reading_from_the_device(make_args):
    """transformers itself asks for padding in each step of a generation."""
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 1}
    ids = {"pad_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": 2}
    model = BartForConditionalGeneration(
        BartConfig(vocab_size=32, max_position_embeddings=16, **sizes, **heads, **ids)
    )
    model.generation_config.max_length = 5
    rows = [{**row, "labels": row["input_ids"]} for row in sentences(8)]
    args = Seq2SeqTrainingArguments(**{**make_args().to_dict(), "predict_with_generate": True})
    trainer = Seq2SeqTrainer(model, args, train_dataset=rows, eval_dataset=rows, compute_metrics=accuracy)
    report = trace_step(trainer)
    assert "masking_utils.py" not in str(report)
    assert "mps_trainer" not in what_to_do(report)


def test_the_trainer_stays_as_it_was(make_trainer, tmp_path, capsys):
    events: list[str] = []

    class Listener(TrainerCallback):
        def __getattribute__(self, name):
            if name.startswith("on_"):
                events.append(name)
            return super().__getattribute__(name)

    trainer = make_trainer(trainer={"callbacks": [Listener()]}, gradient_accumulation_steps=4, eval_strategy="steps")
    events.clear()
    before, args = weights(trainer.model), trainer.args.to_dict()
    state, control = dict(vars(trainer.state)), dict(vars(trainer.control))
    generators = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    trainer.model.eval()
    capsys.readouterr()

    trace_step(trainer, batches=3)

    assert_same_weights(before, weights(trainer.model))
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert trainer.args.to_dict() == args
    assert (dict(vars(trainer.state)), dict(vars(trainer.control))) == (state, control)
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == generators[1:]
    assert trainer.optimizer is None
    assert not trainer.model.training
    assert not trainer.is_in_train
    assert events == []
    assert list((tmp_path / "run").iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_training_after_a_trace_is_the_same_in_every_bit(make_trainer):
    plain = make_trainer(max_steps=3)
    plain.train()
    traced = make_trainer(max_steps=3)
    trace_step(traced, batches=2)
    traced.train()
    assert_same_weights(weights(plain.model), weights(traced.model))


def test_the_step_runs_on_the_cpu_whatever_the_arguments_chose(make_trainer):
    trainer = make_trainer()
    vars(trainer.args)["device"] = torch.device("mps")
    assert trace_step(trainer).ready
    assert trainer.args.device == torch.device("mps")


def test_an_optimizer_of_the_user_s_stays_as_it_was(make_trainer, make_model):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(**{"x": torch.ones(1, 4), "labels": torch.tensor([1])})["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    before, state = weights(model), {k: v.clone() for k, v in optimizer.state[model.head.weight].items()}
    report = trace_step(make_trainer(trainer={"model": model, "optimizers": (optimizer, None)}))
    assert_same_weights(before, weights(model))
    assert all(torch.equal(value, state[name]) for name, value in optimizer.state[model.head.weight].items())
    assert "aten::addcdiv_" in {use.name for use in report.operators if use.phase == "optimizer"}
    assert reads(report) == []


def test_tensors_that_a_collator_gives_out_again_and_again_stay_as_they_are(make_trainer):
    batch = {"x": torch.ones(8, 4, dtype=torch.float64), "labels": torch.ones(8, dtype=torch.long)}
    parts = {"data_collator": lambda items: batch, "eval_dataset": None}
    report = trace_step(make_trainer(trainer=parts, remove_unused_columns=False), batches=2)
    assert report.ready
    assert batch["x"].dtype is torch.float64


class Reading(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        value = loss[0] if return_outputs else loss
        self.seen = value.item()  # somebody's own log
        return loss


def test_a_read_in_a_loss_of_one_s_own_is_found_with_its_line(make_trainer):
    report = trace_step(make_trainer(trainer={"kind": Reading}))
    assert {(read.phase, read.calls) for read in report.blocking_reads} == {("forward", 1), ("evaluation", 1)}
    assert {text.partition("# ")[2] for _, _, text in reads(report)} == {"somebody's own log"}
    assert report.ready


def test_the_mask_of_a_padded_batch_is_made_without_a_read(bert, make_trainer):
    """transformers' own Trainer does wait: test_reads finds the line of its models."""
    rows = [
        {"input_ids": [5] * n + [0] * (4 - n), "attention_mask": [1] * n + [0] * (4 - n), "labels": n % 2}
        for n in (4, 3, 4, 2)
    ]
    report = trace_step(make_trainer(trainer={"model": bert, "train_dataset": rows, "eval_dataset": rows}))
    assert report.blocking_reads == []


def ragged(items: list[dict]) -> dict:
    """Batches of another length each."""
    width = 2 + ragged.calls  # type: ignore[attr-defined]
    ragged.calls += 1  # type: ignore[attr-defined]
    return {"input_ids": torch.ones(len(items), width, dtype=torch.long), "labels": torch.zeros(len(items)).long()}


def test_shapes_are_counted_over_the_batches_asked_for(bert, make_trainer):
    ragged.calls = 0  # type: ignore[attr-defined]
    parts = {"model": bert, "train_dataset": sentences(40), "eval_dataset": None, "data_collator": ragged}
    report = trace_step(make_trainer(trainer=parts, remove_unused_columns=False), batches=3)
    assert [shapes["input_ids"] for shapes in report.batch_shapes] == ["int64[8, 2]", "int64[8, 3]", "int64[8, 4]"]
    gelu = next(use for use in report.operators if use.name == "aten::gelu")
    assert (gelu.calls, gelu.distinct_shapes) == (6, 3)
    assert "Batch shapes in training: 3; mps compiles its graphs for each." in str(report)
    assert any("eval" in note for note in report.notes)


def test_fewer_batches_than_asked_for_are_noted(make_trainer):
    report = trace_step(make_trainer(trainer={"train_dataset": examples(16)}), batches=5)
    assert any("2 batches, fewer than the 5" in note for note in report.notes)


def test_a_dictionary_of_datasets_is_evaluated_on_its_first(make_trainer):
    report = trace_step(make_trainer(trainer={"eval_dataset": {"a": examples(8), "b": examples(8)}}))
    assert "evaluation" in {use.phase for use in report.operators}


def test_logits_prepared_for_the_metrics_are_part_of_the_evaluation(make_trainer):
    def most_frequent(logits, labels):
        return logits.mode().values

    parts = {"compute_metrics": accuracy, "preprocess_logits_for_metrics": most_frequent}
    report = trace_step(make_trainer(trainer=parts), fallback=False)
    assert {(use.name, use.phase) for use in report.with_support(Support.FAILS)} == {("aten::mode", "evaluation")}


def test_other_trainers_are_refused_with_a_way_on():
    with pytest.raises(MisconfigurationException, match=r"with Tracer\(\) as tracer"):
        trace_step(object())  # type: ignore[arg-type]


def test_without_a_dataset_there_is_no_step(make_trainer):
    with pytest.raises(MisconfigurationException, match="give the Trainer a train_dataset"):
        trace_step(make_trainer(trainer={"train_dataset": None}))
    with pytest.raises(ValueError, match="There is nothing to train on"):
        trace_step(make_trainer(trainer={"train_dataset": []}))


def test_a_stream_without_a_batch_has_no_step(make_trainer):
    class Empty(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    trainer = make_trainer(trainer={"train_dataset": Empty()}, max_steps=2)
    with pytest.raises(MisconfigurationException, match="gave no batch"):
        trace_step(trainer)
    assert not trainer.control.should_training_stop


def test_a_model_that_cannot_be_copied_is_refused_with_a_way_on(make_trainer):
    model = Classifier()
    model.lines = (line for line in ())
    with pytest.raises(MisconfigurationException, match="Classifier cannot be copied"):
        trace_step(make_trainer(trainer={"model": model}))


def test_the_random_numbers_come_back_after_an_error_too(make_trainer):
    class Failing(Classifier):
        def forward(self, x, labels=None):
            torch.rand(3)
            raise ZeroDivisionError

    trainer = make_trainer(trainer={"model": Failing()})
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        trace_step(trainer)
    assert torch.equal(torch.get_rng_state(), state)
    assert names(trace_step(make_trainer()))  # and the next trace works
