"""One step of a Trainer: all of its parts are seen, and the Trainer stays as it was."""

import itertools
import random

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer
from mps_trainer.check import trace_step

from ..conftest import Classifier, Stream, accuracy, assert_same_weights, refusal, weights
from ..dropin.conftest import sentences
from ..tiny import SIZES, tiny
from .conftest import bad, names, reads, what_to_do

BERT = "BertForSequenceClassification"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bf16": True},
        {"fp16": True},
        {"optim": "adamw_torch"},
        {"gradient_accumulation_steps": 3},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"label_smoothing_factor": 0.1},
    ],
)
def test_a_bert_is_ready(make_trainer, settings):
    data = {"train_dataset": sentences(48), "eval_dataset": sentences(8), "compute_metrics": accuracy}
    report = trace_step(make_trainer(trainer={"model": tiny(BERT), **data}, **settings))
    assert report.ready, report
    assert bad(report) == set()
    assert report.blocking_reads == []  # transformers' own Trainer waits for the mask: test_reads finds its line
    assert {use.phase for use in report.operators} == {"forward", "backward", "optimizer", "evaluation"}
    assert report.exit_code == 0
    assert report.notes == []
    assert len(report.batch_shapes) == 1
    assert report.batch_shapes[0]["input_ids"] == "int64[8, 10]"


def test_a_model_is_patched_as_on_mps(make_trainer):
    rows = [{"input_ids": torch.arange(3, 11), "labels": torch.arange(3, 11)}] * 16
    trainer = make_trainer(trainer={"model": tiny("LlamaForCausalLM"), "train_dataset": rows, "eval_dataset": rows})
    report = trace_step(trainer)  # transformers waits to hear whether several texts are packed into one
    assert report.blocking_reads == []
    assert report.ready
    assert not any("forward" in vars(module) for module in trainer.model.modules())


@pytest.mark.parametrize("reentrant", [False, True])
def test_llama_with_checkpointing_is_ready(make_trainer, reentrant):
    rows = [{"input_ids": torch.arange(3, 11), "labels": torch.arange(3, 11)}] * 16
    trainer = make_trainer(
        {"model": tiny("LlamaForCausalLM"), "train_dataset": rows, "eval_dataset": rows},
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": reentrant},
    )
    report = trace_step(trainer)
    assert report.ready
    assert report.blocking_reads == []


def test_training_and_evaluation_are_cast_as_the_arguments_ask(make_trainer):
    formats, model = set(), tiny(BERT)
    model.classifier.register_forward_hook(lambda layer, args, result: formats.add((layer.training, result.dtype)))
    trace_step(make_trainer({"model": model, "train_dataset": sentences(8), "eval_dataset": sentences(8)}, bf16=True))
    assert formats == {(True, torch.bfloat16), (False, torch.bfloat16)}


@pytest.mark.parametrize("batches", [1, 2])
def test_the_number_of_items_that_a_model_divides_by_is_not_read_from_the_device(make_trainer, batches):
    rows = [{**row, "labels": row["input_ids"]} for row in sentences(16)]
    data = {"model": tiny("GPT2LMHeadModel"), "train_dataset": rows, "eval_dataset": rows}
    assert reads(trace_step(make_trainer(trainer=data, gradient_accumulation_steps=batches))) == []


class SomeRows(Classifier):
    """A loss over the rows that a mask picks: mps waits for their number in the forward and the backward pass."""

    def forward(self, x, labels):
        logits = super().forward(x)["logits"]
        picked = logits[labels >= 0]  # the line to be named
        return {"loss": picked.square().mean(), "logits": logits}


class Reading(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        value = loss[0] if return_outputs else loss
        self.seen = value.item()  # somebody's own log
        return loss


def test_waits_in_the_losses_of_a_trainer_and_a_model_are_at_their_lines_in_the_gradient_too(make_trainer):
    report = trace_step(make_trainer(trainer={"model": SomeRows(), "kind": Reading}))
    found = {(read.phase, read.calls, read.where.text.partition("# ")[2]) for read in report.blocking_reads}
    own = {(phase, 1, "somebody's own log") for phase in ("forward", "evaluation")}
    assert found == own | {(phase, 1, "the line to be named") for phase in ("forward", "backward", "evaluation")}
    assert report.ready


def test_masks_of_a_generation_are_built_without_reading_from_the_device(make_args):
    """transformers itself asks for padding in each step of a generation."""
    model = tiny("BartForConditionalGeneration", decoder_start_token_id=1, forced_eos_token_id=2)
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
            return lambda *args, **kwargs: events.append(name)

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


def test_shapes_are_counted_over_the_batches_asked_for(make_trainer):
    lengths = itertools.count(2)

    def ragged(items: list[dict]) -> dict:
        ids = torch.ones(len(items), next(lengths), dtype=torch.long)
        return {"input_ids": ids, "labels": torch.zeros(len(items), dtype=torch.long)}

    parts = {"model": tiny(BERT), "train_dataset": sentences(16), "eval_dataset": None, "data_collator": ragged}
    report = trace_step(make_trainer(trainer=parts, remove_unused_columns=False), batches=5)
    assert [shapes["input_ids"] for shapes in report.batch_shapes] == ["int64[8, 2]", "int64[8, 3]"]
    gelu = next(use for use in report.operators if use.name == "aten::gelu")
    assert (gelu.calls, gelu.distinct_shapes) == (2 * SIZES["num_hidden_layers"], 2)
    assert "Batch shapes in training: 2; mps compiles its graphs for each." in str(report)
    assert any("eval" in note for note in report.notes)
    assert any("2 batches, fewer than the 5" in note for note in report.notes)


def not_copied():
    model = Classifier()
    model.lines = (line for line in ())
    return model


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train_dataset": None}, "give the Trainer a train_dataset"),
        ({"train_dataset": []}, "There is nothing to train on"),
        ({"train_dataset": Stream(())}, "gave no batch"),
        ({"model": not_copied()}, "Classifier cannot be copied"),
    ],
)
def test_a_trainer_that_cannot_make_a_step_is_refused_with_a_way_on(make_trainer, given, said):
    trainer = make_trainer(trainer=given, max_steps=2)
    assert said in refusal(trace_step, trainer, kind=ValueError)
    assert not trainer.control.should_training_stop
    assert "with Tracer() as tracer" in refusal(trace_step, object())


@pytest.mark.parametrize("patched", ["instance", "class"])
def test_methods_that_are_patched_count_as_overridden(make_trainer, monkeypatch, patched):
    trainer, seen = make_trainer(trainer={"train_dataset": None}), []
    loader = make_trainer().get_train_dataloader()
    owner = trainer if patched == "instance" else Trainer
    monkeypatch.setattr(owner, "get_train_dataloader", lambda *_: loader)
    monkeypatch.setattr(owner, "_prepare_inputs", lambda *own_and_batch: own_and_batch[-1])
    monkeypatch.setattr(owner, "log", lambda *own_and_logs: seen.append(own_and_logs[-2]))
    report = trace_step(trainer)
    assert report.batch_shapes
    assert [set(logs) for logs in seen] == [{"loss", "grad_norm", "learning_rate"}]


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
