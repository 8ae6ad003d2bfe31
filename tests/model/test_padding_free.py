"""Training without padding gives the numbers of training with it, or does not begin."""

import copy
import functools
from dataclasses import dataclass
from pathlib import Path
from types import MethodType

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader
from transformers import DataCollatorWithFlattening
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.modernbert.modeling_modernbert import ModernBertAttention

from mps_trainer import Trainer, TrainingArguments
from mps_trainer.callbacks.overview import first_lines
from mps_trainer.data.unpadding import (
    in_one_row,
    layout_of_mask,
    layout_of_packed_row,
    record_layouts,
    row_length,
    to_padded_batch,
)
from mps_trainer.model import padding_free
from mps_trainer.model.padding_free import has_dropout, plan_padding
from mps_trainer.model.patches import unread_tokens
from mps_trainer.simulator import SimulationCallback
from mps_trainer.utils.text_layout import layout_of
from tests.conftest import callback, messages_with, weights
from tests.tiny import tiny, with_lora

LENGTHS = (1, 12, 5, 2, 9, 12, 3, 7)
WIDTH = 14
DECODERS = {
    "LlamaForCausalLM": {},
    "Qwen3ForCausalLM": {"num_key_value_heads": 1, "head_dim": 8},
    "MistralForCausalLM": {"num_key_value_heads": 1, "sliding_window": 4},
    "Gemma2ForCausalLM": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4},
    "GPT2LMHeadModel": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "GPTNeoXForCausalLM": {},
    "MixtralForCausalLM": {"num_key_value_heads": 2},
}
OPT = {"ffn_dim": 24, "word_embed_proj_dim": 16, "dropout": 0.0}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODERN = {"local_attention": 12, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
ENCODERS = {
    "BertForSequenceClassification": NO_DROPOUT,
    "RobertaForSequenceClassification": NO_DROPOUT,
    "XLMRobertaForTokenClassification": NO_DROPOUT,
    "ElectraForSequenceClassification": {**NO_DROPOUT, "embedding_size": 16},
    "BertForMaskedLM": NO_DROPOUT,
    "DistilBertForSequenceClassification": {
        **{"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2},
        **{"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
    },
    "MPNetForSequenceClassification": {**NO_DROPOUT, "return_dict": False},
    "MPNetForTokenClassification": NO_DROPOUT,
    "MPNetForMaskedLM": NO_DROPOUT,
    # tokens see the whole text in the first layer, and six tokens on each side in the second one
    "ModernBertForSequenceClassification": {**MODERN, "classifier_pooling": "mean"},
    "ModernBertForTokenClassification": MODERN,
    "ModernBertForMaskedLM": {**MODERN, "sparse_prediction": True},
}


def texts(by_token, left=False, lengths=LENGTHS, first=-100):
    """Returns padded examples, with a label of each token or of each text."""
    randoms, rows = torch.Generator().manual_seed(1), []
    for number, length in enumerate(lengths):
        words = torch.randint(3, 64, (length,), generator=randoms).tolist()
        padding = WIDTH - length

        def padded(values, filler, padding=padding):
            return [filler] * padding + values if left else values + [filler] * padding

        labels = padded([first, *(word % 2 for word in words[1:])], -100) if by_token else number % 2
        row = {"input_ids": padded(words, 0), "attention_mask": padded([1] * length, 0), "labels": labels}
        rows.append(row)
    return rows


def batch_of(rows):
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def is_by_token(name):
    return not name.endswith("SequenceClassification")


def attentions_of(name):
    """Returns the kinds of attention with which an encoder trains without padding."""
    if name.startswith("MPNet"):
        return ["eager"]  # it has no other
    # older releases of transformers do not look up the eager attention of ModernBERT, which then keeps its padding
    looks_up = "get_interface" in ModernBertAttention.forward.__code__.co_names
    return ["sdpa", "eager"] if looks_up or not name.startswith("ModernBert") else ["sdpa"]


def texts_for(name, left):
    """Returns examples for an encoder. Those with left padding begin within the window of ModernBERT's layers."""
    lengths = (9, 12, 9, 8, 9, 8, 10, 8) if left and name.startswith("ModernBert") else LENGTHS
    return texts(is_by_token(name), left, lengths)


@pytest.fixture
def fractions(monkeypatch):
    """The fraction of tokens that each run has left out."""
    found, plain = [], Trainer._finalize_training

    def finalize(self, *args, **kwargs):
        found.append(self._mt_run.padding.fraction_left_out)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "_finalize_training", finalize)
    return found


@pytest.fixture
def train(make_args, fractions):
    """`train(model, rows, padding_free, **settings)` returns the weights after three steps of a copy of the model."""

    def run(model, rows, padding_free, kind=Trainer, collator=None, **settings):
        defaults = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 0.5, "optim": "sgd"}
        args = make_args(padding_free=padding_free, **{**defaults, "max_grad_norm": 0.0, **settings})
        trainer = kind(copy.deepcopy(model), args, train_dataset=rows, data_collator=collator)
        trainer.train()
        return weights(trainer.model)

    return run


@pytest.fixture
def assert_equal(train, fractions, device):
    """Asserts that training without padding leaves some out, and gives the weights of training with it."""

    def check(model, rows, dtype=torch.float32, **settings):
        model = model.to(dtype)
        expected, actual = (train(model, rows, choice, **settings) for choice in (False, True))
        assert fractions[-2] is None
        assert fractions[-1] > 0.2
        before = weights(model)
        assert any(not torch.equal(expected[name], before[name]) for name in expected)
        for name, value in expected.items():
            accuracy = 1e-9 if dtype is torch.float64 else 1e-5
            torch.testing.assert_close(actual[name], value, atol=accuracy, rtol=accuracy)

    return check


@pytest.mark.parametrize(
    "name", [name for name in DECODERS if name not in ("Gemma2ForCausalLM", "MixtralForCausalLM")]
)
def test_decoder_equals_padded_in_float64(assert_equal, name):
    assert_equal(tiny(name, **DECODERS[name]), texts(True), torch.float64)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_equals_padded_in_float64(assert_equal, name, left):
    assert_equal(tiny(name, **ENCODERS[name]), texts_for(name, left), torch.float64)


@pytest.mark.every_device
@pytest.mark.parametrize(
    ("name", "attention", "left"),
    [
        (name, attention, left)
        for name in DECODERS
        for attention in ("sdpa", "eager")
        for left in (False, True)
        if (name, attention) != ("Gemma2ForCausalLM", "sdpa")  # which transformers refuses
        and not (left and name == "GPT2LMHeadModel")  # its positions count the padding before a text
    ],
)
def test_decoder_equals_padded(assert_equal, name, attention, left):
    assert_equal(tiny(name, attn_implementation=attention, **DECODERS[name]), texts(True, left))


@pytest.mark.every_device
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, attention) for name in ENCODERS for attention in ("sdpa", "eager") if attention in attentions_of(name)],
)
def test_encoder_equals_padded(assert_equal, name, attention, left):
    assert_equal(tiny(name, attn_implementation=attention, **ENCODERS[name]), texts_for(name, left))


@pytest.mark.every_device
@pytest.mark.parametrize(
    "name",
    [
        *("LlamaForCausalLM", "MistralForCausalLM", "BertForSequenceClassification"),
        "ModernBertForSequenceClassification",
    ],
)
@pytest.mark.parametrize(
    "settings",
    [
        {"chunked_attention": True},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
        {"skip_unread_tokens": True},
        {"train_sampling_strategy": "bucket_by_length"},
        {"gradient_checkpointing": True, "skip_unread_tokens": True},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_equals_padded_with_other_arguments(assert_equal, name, settings):
    rows = texts(is_by_token(name))
    if "train_sampling_strategy" in settings:
        rows = [{name: value for name, value in row.items() if name != "length"} for row in rows]
    assert_equal(tiny(name, **{**DECODERS, **ENCODERS}[name]), rows, **settings)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_first_place_that_sees_no_token_keeps_padding(train, fractions, attention):
    """In a layer with a window, ModernBERT computes it from other padding."""
    made = tiny("ModernBertForSequenceClassification", attn_implementation=attention, **MODERN)
    expected, actual = (train(made, texts(False, left=True, lengths=(7,) * 8), choice) for choice in (False, True))
    assert fractions[-1] is None
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_positions_of_user_are_those_of_row(train, fractions):
    """ModernBERT gets its positions in the batch."""
    rows = [{**row, "position_ids": list(range(0, 2 * WIDTH, 2))} for row in texts(True)]
    made = tiny("ModernBertForTokenClassification", **MODERN)
    expected, actual = (train(made, rows, choice) for choice in (False, True))
    assert fractions[-1] > 0.2
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-5, rtol=1e-5)


def test_last_layer_of_row_computes_first_tokens_alone(train, monkeypatch):
    sizes, plain = [], unread_tokens._first_token

    def counted(layer, hidden, *args, **kwargs):
        first = plain(layer, hidden, *args, **kwargs)
        sizes.append((tuple(hidden.shape[:2]), tuple(first.shape[:2])))
        return first

    monkeypatch.setattr(unread_tokens, "_first_token", counted)
    settings = {"skip_unread_tokens": True, "train_sampling_strategy": "sequential", "max_steps": 1}
    train(tiny("BertForSequenceClassification", **NO_DROPOUT), texts(False), True, **settings)
    assert sizes[-1] == ((1, sum(LENGTHS[:4])), (1, 4))


def test_lora_equals_padded(train, fractions):
    made = with_lora(tiny("LlamaForCausalLM"), lora_dropout=0.0)
    expected, actual = (train(made, texts(True), choice) for choice in (False, True))
    assert fractions[-1] > 0.2
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-6, rtol=1e-5)


def test_batch_that_is_halved_is_unpadded_after_that(train, fractions, monkeypatch):
    plain, sizes = transformers.LlamaModel.forward, []

    @functools.wraps(plain)
    def forward(self, input_ids=None, **kwargs):
        if self.training:
            sizes.append(tuple(input_ids.shape))
            if len(sizes) == 1:
                raise torch.OutOfMemoryError("out of memory")
        return plain(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(transformers.LlamaModel, "forward", forward)
    made = tiny("LlamaForCausalLM")
    actual = train(made, texts(True), True, auto_find_batch_size=True, train_sampling_strategy="sequential")
    assert sizes[:3] == [(1, 20), (1, 13), (1, 7)]
    monkeypatch.undo()
    expected = train(made, texts(True), False, train_sampling_strategy="sequential")
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-6, rtol=1e-5)


@pytest.fixture
def evaluate(make_args, monkeypatch):
    """`evaluate(model, padding_free)` returns the loss of an evaluation in a run, and the shapes of hidden states."""

    def run(model, padding_free, kind=Trainer, rows=None, **more):
        shapes, layer = (
            set(),
            next(each for each in model.modules() if type(each).__name__.endswith(("Layer", "Block"))),
        )
        plain = type(layer).forward

        @functools.wraps(plain)
        def forward(self, hidden_states, *args, **kwargs):
            shapes.add(tuple(hidden_states.shape[:2]))
            return plain(self, hidden_states, *args, **kwargs)

        def count(*args, **kwargs):
            monkeypatch.setattr(type(layer), "forward", forward)

        rows = texts(is_by_token(type(model).__name__)) if rows is None else rows
        args = make_args(
            **{"padding_free": padding_free, "max_steps": 1, "eval_strategy": "steps", "eval_steps": 1},
            **{"learning_rate": 0.0, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4},
        )
        trainer = kind(
            model, args, train_dataset=rows, eval_dataset=rows, callbacks=[callback(on_step_end=count)], **more
        )
        trainer.train()
        monkeypatch.undo()
        loss = next(entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
        return loss, shapes

    return run


ROWS_OF_EVALUATION = {(1, sum(LENGTHS[:4])), (1, sum(LENGTHS[4:]))}


@pytest.mark.parametrize(
    "name",
    [
        *("LlamaForCausalLM", "BertForSequenceClassification", "XLMRobertaForTokenClassification"),
        *("ModernBertForMaskedLM", "MPNetForSequenceClassification"),
    ],
)
def test_evaluation_of_loss_equals_padded(evaluate, name):
    (expected, padded), (actual, shapes) = (
        evaluate(tiny(name, **{**DECODERS, **ENCODERS}[name]), choice) for choice in (False, True)
    )
    assert padded == {(4, WIDTH)}
    assert shapes == ROWS_OF_EVALUATION
    assert actual == pytest.approx(expected, abs=1e-6)


class OwnPrediction(Trainer):
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)


@pytest.mark.parametrize(
    "settings",
    [{"kind": OwnPrediction}, {"compute_metrics": lambda found: {"size": len(found.predictions)}}],
    ids=["prediction_step", "compute_metrics"],
)
def test_evaluation_that_shows_logits_or_batches_keeps_padding(evaluate, settings):
    made = tiny("LlamaForCausalLM")
    assert evaluate(made, True, **settings) == evaluate(made, False, **settings)


def test_predictions_on_the_same_tensors_keep_padding(make_args):
    """The loader gives the tensors again from which an evaluation of the loss left out padding."""
    rows = texts(True)

    def predictions(padding_free):
        batches, found = [batch_of(rows[:4]), batch_of(rows[4:])], []
        trainer = Trainer(
            tiny("ModernBertForTokenClassification", **ENCODERS["ModernBertForTokenClassification"]),
            make_args(
                max_steps=1,
                eval_strategy="steps",
                eval_steps=1,
                learning_rate=0.0,
                padding_free=padding_free,
                per_device_train_batch_size=4,
                per_device_eval_batch_size=1,
            ),
            train_dataset=rows,
            eval_dataset=batches,
            data_collator=lambda each: each[0] if len(each) == 1 else batch_of(each),
            callbacks=[callback(on_evaluate=lambda *_, **__: found.append(trainer.predict(batches).predictions))],
        )
        trainer.train()
        return found[0]

    for actual, expected in zip(predictions(True), predictions(False), strict=True):
        torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), atol=1e-6, rtol=1e-6)


def test_evaluation_that_counts_first_labels_keeps_padding(evaluate):
    """Of GPT-2, transformers counts them among the items by which it divides."""
    made, rows = tiny("GPT2LMHeadModel", **DECODERS["GPT2LMHeadModel"]), texts(True, first=5)
    assert evaluate(made, True, rows=rows)[0] == evaluate(made, False, rows=rows)[0]


# Who gets it


@pytest.mark.every_device
def test_default_depends_on_dropout_except_on_mps(train, fractions, device):
    train(tiny("LlamaForCausalLM"), texts(True), None)
    train(tiny("LlamaForCausalLM", attention_dropout=0.1), texts(True), None)
    train(tiny("BertForSequenceClassification"), texts(False), None)
    assert [fraction is not None for fraction in fractions] == [True, device == "mps", device == "mps"]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("LlamaForCausalLM", {}, False),
        ("LlamaForCausalLM", {"attention_dropout": 0.1}, True),
        ("BertModel", {}, True),
        ("BertModel", {"hidden_dropout_prob": 0.0}, True),
        ("BertModel", NO_DROPOUT, False),
        ("PhimoeForCausalLM", {"router_jitter_noise": 0.01}, True),
    ],
)
def test_dropout_is_found(name, settings, expected):
    assert has_dropout(tiny(name, **settings)) is expected


def mean_of_examples(logits, labels, **given):
    losses = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return losses.mean(1).mean()


def with_loss(model):
    model.loss_function = mean_of_examples
    return model


def with_forward(model):
    model.forward = MethodType(lambda self, **inputs: type(self).forward(self, **inputs), model)
    return model


class LlamaForCausalLM(transformers.LlamaForCausalLM):
    """A user's model with a name of transformers'."""


class Sentences(nn.Module):
    def __init__(self, *more):
        super().__init__()
        self.bert, self.more = tiny("BertModel", **NO_DROPOUT), nn.ModuleList(more)

    def forward(self, input_ids, attention_mask, labels=None):
        return self.bert(input_ids, attention_mask=attention_mask).pooler_output


class InTraining(Sentences):
    def forward(self, input_ids, attention_mask, labels=None):
        return super().forward(input_ids, attention_mask) * (2 if self.training else 1)


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


NEO = {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
DYNAMIC_BY_LAYER = {"full_attention": DYNAMIC, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}


class OwnStep(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, inputs, num_items_in_batch)


def with_hook(model, place=""):
    model.get_submodule(place).register_forward_hook(lambda *given: None)
    return model


@pytest.mark.parametrize(
    ("model", "kind", "settings", "reason"),
    [
        (lambda: tiny("LlamaForCausalLM"), Trainer, {}, ""),
        (lambda: tiny("LlamaForCausalLM"), Trainer, {"padding_free": False}, "padding_free=False"),
        (lambda: tiny("LlamaForCausalLM"), Trainer, {"torch_compile": True}, "compiled"),
        (lambda: tiny("LlamaForCausalLM"), Trainer, {"neftune_noise_alpha": 5.0}, "noise"),
        (lambda: tiny("LlamaForCausalLM"), Trainer, {"label_smoothing_factor": 0.1}, "computes the loss"),
        (lambda: tiny("LlamaForCausalLM"), OwnLoss, {}, "computes the loss"),
        (lambda: tiny("LlamaForCausalLM"), OwnStep, {}, "sees the batch"),
        (lambda: with_hook(tiny("LlamaForCausalLM")), Trainer, {}, "hook"),
        (lambda: with_hook(tiny("LlamaForCausalLM"), "model.embed_tokens"), Trainer, {}, "hook"),
        (lambda: with_hook(tiny("BertForSequenceClassification"), "bert.encoder.layer.1"), Trainer, {}, "hook"),
        (lambda: with_hook(tiny("BertForSequenceClassification"), "bert.pooler"), Trainer, {}, ""),
        (lambda: tiny("MixtralForCausalLM", output_router_logits=True), Trainer, {}, "routers"),
        (lambda: nn.DataParallel(tiny("LlamaForCausalLM")), Trainer, {}, "several devices"),
        (lambda: tiny("T5ForConditionalGeneration"), Trainer, {}, "neither"),
        (lambda: tiny("BertForSequenceClassification"), OwnLoss, {}, ""),
        (lambda: tiny("BertModel"), OwnLoss, {}, "other code"),
        (lambda: with_loss(tiny("LlamaForCausalLM")), Trainer, {}, "its loss"),
        (lambda: with_forward(tiny("LlamaForCausalLM")), Trainer, {}, "its forward"),
        (lambda: tiny(LlamaForCausalLM), Trainer, {}, "its forward"),
        (lambda: tiny("GPTNeoForCausalLM", **NEO), Trainer, {}, "table of positions"),
        (lambda: tiny("LlamaForCausalLM", rope_parameters=DYNAMIC), Trainer, {}, "rotary"),
        (lambda: tiny("ModernBertModel", rope_parameters=DYNAMIC_BY_LAYER, **MODERN), Trainer, {}, "rotary"),
        (lambda: with_hook(tiny("ModernBertModel", **MODERN), "layers.1"), Trainer, {}, "hook"),
        (lambda: with_hook(tiny("ModernBertForTokenClassification", **MODERN), "head"), Trainer, {}, ""),
        (Sentences, Trainer, {}, ""),
        (Sentences, OwnLoss, {}, "other code"),
        (lambda: Sentences(nn.BatchNorm1d(16)), Trainer, {}, "BatchNorm1d computes other numbers in training"),
        (InTraining, Trainer, {}, "InTraining computes other numbers in training"),
        (lambda: tiny("BertForQuestionAnswering"), Trainer, {}, "padding"),
        (lambda: with_hook(tiny("MPNetModel", **NO_DROPOUT), "encoder.layer.1"), Trainer, {}, "hook"),
        (lambda: tiny("DebertaV2ForSequenceClassification"), Trainer, {}, "neither"),
        (lambda: nn.Linear(2, 2), Trainer, {}, "not one of transformers"),
    ],
)
def test_plan_has_reason(make_args, model, kind, settings, reason):
    trainer = kind(model(), make_args(**{"padding_free": True, **settings}), train_dataset=texts(True))
    found = plan_padding(trainer, torch.device("cpu"))
    assert found.applies is (reason == "")
    assert reason in found.reason


def test_prompts_keep_padding(make_args):
    peft = pytest.importorskip("peft")
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    made = peft.get_peft_model(tiny("LlamaForCausalLM"), settings)
    trainer = Trainer(made, make_args(padding_free=True), train_dataset=texts(True))
    assert "tokens of its own" in plan_padding(trainer, torch.device("cpu")).reason


# The first batch, computed both ways


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("OPTForCausalLM", OPT),
        ("BloomForCausalLM", {"n_head": 2, "n_layer": 2}),
        ("GptOssForCausalLM", {"num_key_value_heads": 2, "num_local_experts": 4, "head_dim": 8}),
        ("MambaForCausalLM", {}),
        ("BioGptForCausalLM", NO_DROPOUT | {"activation_dropout": 0.0}),
        ("Qwen3NextForCausalLM", {"num_experts": 2, "num_experts_per_tok": 1, "num_key_value_heads": 2}),
    ],
)
def test_model_that_runs_on_across_texts_keeps_padding(train, fractions, caplog, name, settings):
    made = tiny(name, **settings)
    expected, actual = (train(made, texts(True), choice) for choice in (False, True))
    assert fractions[-1] is None
    assert all(torch.equal(actual[each], expected[each]) for each in expected)
    assert len(messages_with(caplog, "keeps the padding")) == 1


@pytest.fixture
def runs_on(monkeypatch):
    """`runs_on(fraction)` makes Llama wrong by design: each state has a fraction of the token before, in any text."""
    plain = LlamaMLP.forward

    def make(fraction):
        def forward(self, x):
            out = plain(self, x)
            return out + fraction * torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)

        monkeypatch.setattr(LlamaMLP, "forward", forward)

    return make


@pytest.mark.every_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_difference_is_found(train, fractions, caplog, runs_on, dtype):
    """In bfloat16 it is smaller than rounding, and shows only when another text changes."""
    runs_on(1e-2)
    train(tiny("LlamaForCausalLM").to(dtype), texts(True), True)
    assert fractions == [None]
    assert messages_with(caplog, "computes other numbers without padding")


def test_batch_of_one_text_is_no_evidence(train, fractions, caplog):
    """Its padding stays, and the next batch is tried."""
    rows = [*texts(True, lengths=(3,)), *texts(True, lengths=(5, 9, 2))]

    class OneFirst(Trainer):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, batch_sampler=[[0], [1, 2, 3]], collate_fn=self.data_collator)

    made = tiny("OPTForCausalLM", **OPT)
    train(made, rows, True, kind=OneFirst, max_steps=2)
    assert fractions == [None]
    assert len(messages_with(caplog, "keeps the padding")) == 1


def test_left_padding_before_label_that_counts_is_named(train, fractions, caplog):
    train(tiny("LlamaForCausalLM"), texts(True, left=True, first=1), True)
    assert fractions == [None]
    assert len(messages_with(caplog, "Set tokenizer.padding_side='right'")) == 1


def test_absolute_positions_keep_left_padding_alone(train, fractions, caplog):
    made, settings = tiny("GPT2LMHeadModel", **DECODERS["GPT2LMHeadModel"]), {"train_sampling_strategy": "sequential"}
    rows = [*texts(True, left=True, lengths=(3, 4, 5, 6)), *texts(True, lengths=(1, 2, 3, 4))]
    expected, actual = (train(made, rows, choice, max_steps=4, **settings) for choice in (False, True))
    assert 0.1 < fractions[-1] < 0.5
    assert len(messages_with(caplog, "keeps the padding")) == 1
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-6, rtol=1e-5)


class MeanOfAll(nn.Module):
    """A user's classifier whose mean over the tokens includes those of padding."""

    def __init__(self):
        super().__init__()
        self.bert = tiny("BertModel", **NO_DROPOUT)
        self.head = nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.head(hidden.mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class CallsEncoder(Trainer):
    """Its loss calls the encoder itself, and reads the padding."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        hidden = model.bert(**inputs).last_hidden_state.mean(1)
        return nn.functional.cross_entropy(model.classifier(hidden), labels)


def test_encoder_that_is_called_by_loss_itself_stays_padded(train):
    made = tiny("BertForSequenceClassification", **NO_DROPOUT)
    expected, actual = (train(made, texts(False), choice, kind=CallsEncoder) for choice in (False, True))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


class WeightedLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        return nn.functional.cross_entropy(model(**inputs).logits, labels, weight=torch.tensor([1.0, 3.0]))


def test_loss_of_logits_trains_without_padding(train, fractions):
    made = tiny("BertForSequenceClassification", **NO_DROPOUT)
    expected, actual = (train(made, texts(False), choice, kind=WeightedLoss) for choice in (False, True))
    assert fractions[-1] > 0.2
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-5, rtol=1e-5)


def test_loss_of_tokens_of_others_keeps_padding(train, fractions, make_args):
    def entropy(outputs, labels, num_items_in_batch=None):
        probabilities = outputs.logits.softmax(-1)
        return (probabilities * probabilities.log()).sum(-1).mean()

    made = tiny("BertForTokenClassification", **NO_DROPOUT)
    args = make_args(max_steps=1, padding_free=True)
    Trainer(made, args, train_dataset=texts(True), compute_loss_func=entropy).train()
    assert fractions == [None]


@pytest.fixture
def train_with_hook(make_args):
    """`train_with_hook(model, rows, collator)` returns the shapes that a hook of a callback sees in a step."""

    def run(model, rows, collator=None):
        shapes = []
        add = callback(
            on_train_begin=lambda **_: model.model.layers[0].register_forward_hook(
                lambda module, args, output: shapes.append(tuple(output.shape[:2]))
            )
        )
        args = make_args(
            max_steps=1, padding_free=True, per_device_train_batch_size=4, train_sampling_strategy="sequential"
        )
        Trainer(model, args, train_dataset=rows, data_collator=collator, callbacks=[add]).train()
        return shapes

    return run


def test_hook_that_a_callback_adds_keeps_padding(train_with_hook, fractions):
    assert train_with_hook(tiny("LlamaForCausalLM"), texts(True)) == [(4, WIDTH)]
    assert fractions == [None]


def test_hook_that_a_callback_adds_keeps_packed_row(train_with_hook):
    flat = DataCollatorWithFlattening(return_position_ids=True)
    rows = without_padding(texts(True))
    assert train_with_hook(tiny("LlamaForCausalLM"), rows, flat) == [(1, sum(LENGTHS[:4]))]


def test_pooling_that_reads_padding_keeps_it(train, fractions, caplog):
    train(MeanOfAll(), texts(False), True)
    assert fractions == [None]
    assert messages_with(caplog, "keeps the padding")


def test_dropout_of_first_batch_is_as_with_padding(train, monkeypatch):
    """The comparison draws no numbers: with it, a batch without padding trains as without it."""
    rows = texts(False, lengths=(WIDTH,) * 8)
    made = tiny("BertForSequenceClassification")
    expected, actual = (train(made, rows, choice) for choice in (False, True))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    drawn = torch.get_rng_state()
    with padding_free.evaluating(made):
        assert not made.training
        torch.rand(3)
    assert made.training
    assert made.bert.training
    assert torch.equal(torch.get_rng_state(), drawn)


def test_error_in_comparison_keeps_padding(train, fractions, caplog, monkeypatch):
    def fail(*given):
        raise RuntimeError("no")

    monkeypatch.setattr("mps_trainer.loop.padding_free.hidden_states_of", fail)
    train(tiny("LlamaForCausalLM"), texts(True), True)
    assert fractions == [None]
    assert messages_with(caplog, "fails without padding (RuntimeError), as the first batch showed")


@dataclass
class SFTConfig(TrainingArguments):
    padding_free: bool = False


@dataclass
class PaddedConfig(SFTConfig):
    padding_free: bool | None = None


@pytest.mark.parametrize(
    ("kind", "given", "choice"),
    [
        (SFTConfig, {}, None),
        (SFTConfig, {"padding_free": False}, None),
        (SFTConfig, {"padding_free": True}, True),
        (PaddedConfig, {}, None),
        (PaddedConfig, {"padding_free": False}, False),
    ],
)
def test_field_of_trl_with_its_default_is_no_choice(tmp_path, kind, given, choice):
    assert padding_free.padding_choice(kind(output_dir=str(tmp_path), **given)) is choice


class SFTTrainer(Trainer):
    """Counts tokens as TRL's SFTTrainer does."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        mask = inputs.get("attention_mask")
        COUNTED.append(inputs["position_ids"].size(1) if mask is None else int(mask.sum()))
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    compute_loss.__module__ = padding_free._SFT_TRAINER_MODULE


COUNTED = []


@pytest.mark.every_device
def test_trl_counts_no_filler(assert_equal, device):
    """Rows of 20 and 31 tokens, of which mps fills the second one."""
    COUNTED.clear()
    settings = {"kind": SFTTrainer, "train_sampling_strategy": "sequential", "max_steps": 2}
    assert_equal(tiny("LlamaForCausalLM"), texts(True), **settings)
    assert row_length(31) > 31
    counted = [sum(LENGTHS[:4]), sum(LENGTHS[4:])]
    assert [*counted, *counted] == COUNTED  # with padding, and without it


# Rows that a collator packs


def without_padding(rows):
    return [
        {name: [word for word, seen in zip(row[name], row["attention_mask"], strict=True) if seen] for name in row}
        for row in rows
    ]


@pytest.mark.every_device
@pytest.mark.parametrize("lengths", [LENGTHS, (12, 12, 11, 12, 12, 12, 12, 10)], ids=["uneven", "even"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_row_equals_padded_batch(train, fractions, attention, lengths):
    """Even lengths take the form of the padded batch in attention, uneven ones the row's."""
    made, rows = tiny("LlamaForCausalLM", attn_implementation=attention), texts(True, lengths=lengths)
    flat = DataCollatorWithFlattening(return_position_ids=True)
    settings = {"train_sampling_strategy": "sequential"}
    expected = train(made, rows, False, **settings)
    actual = train(made, without_padding(rows), True, collator=flat, **settings)
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_packed_row_of_model_that_runs_on_across_texts_is_padded(train, caplog, dropout):
    made = tiny("OPTForCausalLM", **OPT, attention_dropout=dropout)
    flat = DataCollatorWithFlattening(return_position_ids=True)
    settings = {"train_sampling_strategy": "sequential", "max_steps": 2}
    actual = train(made, without_padding(texts(True)), None, collator=flat, **settings)
    assert len(messages_with(caplog, "keeps the padding")) == 1
    expected = train(made, texts(True, lengths=LENGTHS), False, **settings)
    if not dropout:
        for name in expected:
            torch.testing.assert_close(actual[name], expected[name], atol=1e-5, rtol=1e-5)


def test_layout_of_packed_row():
    flat = DataCollatorWithFlattening(return_position_ids=True)
    batch = flat(without_padding(texts(True, lengths=(2, 5, 1))))
    layout = layout_of_packed_row(batch)
    assert (layout.batch, layout.length, layout.starts) == (3, 5, (0, 2, 7))
    padded, expected = to_padded_batch(batch, layout), batch_of(texts(True, lengths=(2, 5, 1)))
    assert torch.equal(padded["input_ids"], expected["input_ids"][:, :5])
    assert torch.equal(padded["attention_mask"], expected["attention_mask"][:, :5])
    assert torch.equal(padded["labels"], expected["labels"][:, :5])
    one_text = flat(without_padding(texts(True, lengths=(5,))))
    assert layout_of_packed_row(one_text) is None
    assert layout_of_packed_row({**batch, "attention_mask": torch.ones(1, 8)}) is None
    assert layout_of_packed_row({name: value for name, value in batch.items() if name != "labels"}) is None


# Batches


def test_row_of_decoder():
    batch = batch_of(texts(True, lengths=(2, 5, 1)))
    tokens, labels, rows = batch["input_ids"], batch["labels"], in_one_row(batch, fills=False)
    assert rows["input_ids"].tolist() == [[*tokens[0, :2], *tokens[1, :5], tokens[2, 0]]]
    assert rows["position_ids"].tolist() == [[0, 1, 0, 1, 2, 3, 4, 0]]
    assert rows["labels"].tolist() == [[-100, labels[0, 1], -100, *labels[1, 1:5], -100]]
    assert layout_of(rows["position_ids"]).starts == (0, 2, 7)


def test_first_label_of_text_is_ignored():
    row = in_one_row(batch_of(texts(True, lengths=(2, 5), first=7)), fills=False)
    assert row["labels"][0, [0, 2]].tolist() == [-100, -100]


def test_padding_before_texts_gives_same_row():
    right, left = (in_one_row(batch_of(texts(True, side)), fills=True) for side in (False, True))
    length = layout_of(right["position_ids"]).num_text_tokens
    assert length == sum(LENGTHS)
    for name in right:
        assert torch.equal(right[name][0, :length], left[name][0, :length])


def changed(**changes):
    batch = batch_of(texts(True))
    for name, change in changes.items():
        batch[name] = change(batch[name]) if callable(change) else change
    return batch


def with_value(row, column, value):
    def change(tensor):
        tensor[row, column] = value
        return tensor

    return change


@pytest.mark.parametrize(
    "batch",
    [
        changed(attention_mask=torch.ones_like),
        changed(attention_mask=with_value(1, 3, 0)),
        changed(attention_mask=with_value(0, 0, 0)),
        changed(labels=with_value(0, WIDTH - 1, 5)),
        changed(position_ids=torch.zeros(len(LENGTHS), WIDTH)),
        changed(labels=lambda labels: labels.float()),
        changed(labels=lambda labels: labels[:, :3]),
        {name: tensor for name, tensor in batch_of(texts(True)).items() if name != "labels"},
        {name: tensor[:0] for name, tensor in batch_of(texts(True)).items()},
        batch_of(texts(True, left=True, first=7)),
        list(batch_of(texts(True)).values()),
    ],
    ids=[
        *("no-padding", "hole", "row-without-text", "label-of-padding", "positions", "float-labels", "other-shape"),
        *("no-labels", "no-rows", "first-label-after-padding", "no-dictionary"),
    ],
)
def test_batch_that_stays_as_it_is(batch):
    assert in_one_row(batch, fills=False) is None


def test_label_of_padding_keeps_encoder_batch():
    batch = batch_of(texts(True))
    assert record_layouts(batch, fills=False)
    batch = changed(labels=with_value(0, WIDTH - 1, 5))
    assert not record_layouts(batch, fills=False)
    assert layout_of(batch["attention_mask"]) is None


def test_each_mask_of_batch_gets_layout():
    first, second = batch_of(texts(False)), batch_of(texts(False, lengths=(3, 3, 5)))
    batch = {f"anchor_{name}": value for name, value in first.items()}
    batch["others"] = [second]
    assert [layout.batch for layout in record_layouts(batch, fills=False)] == [8, 3]


def test_encoder_computes_first_place_of_each_row():
    mask = batch_of(texts(False, left=True))["attention_mask"]
    layout = layout_of_mask(mask, fills=False, keeps_first=True)
    assert layout.first_tokens.tolist() == list(layout.starts)
    assert layout.num_tokens == int(mask.sum()) + len(LENGTHS)  # no row is full


def test_lengths_of_rows_are_few_and_near():
    lengths = range(64, 4096)
    assert all(row_length(length) >= length for length in range(1, 5000))
    assert len({row_length(length) for length in lengths}) <= 6 * 8 + 1
    fillers = [row_length(length) / length - 1 for length in lengths]
    assert max(fillers) <= 1 / 8
    assert sum(fillers) / len(fillers) < 0.06


@pytest.mark.parametrize("fills", [False, True])
def test_layout_maps_both_ways(fills):
    layout = layout_of_mask(batch_of(texts(False))["attention_mask"], fills, keeps_first=False)
    padded = torch.randn(len(LENGTHS), WIDTH, 3, dtype=torch.float64, requires_grad=True)
    row = layout.to_row(padded)
    assert row.shape == (1, layout.num_tokens, 3)
    kept = ~layout.left_out.view(len(LENGTHS), WIDTH, 1)
    assert torch.equal(layout.to_padded(row), padded * kept)
    assert torch.equal(layout.to_padded_unmasked(row)[kept.expand(padded.shape)], padded[kept.expand(padded.shape)])
    assert torch.autograd.gradcheck(layout.to_row, [padded])
    assert torch.autograd.gradcheck(layout.to_padded, [row.detach().requires_grad_()])


# Around a run


@pytest.mark.every_device
def test_resumed_run_equals_whole_run(assert_resumes, device):
    def parts():
        rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
        return {"model": tiny("BertForSequenceClassification", **rates), "train_dataset": texts(False)}

    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 4}
    assert_resumes(2, parts, padding_free=True, **settings)


def test_hidden_states_on_request_are_padded(train, fractions):
    made = tiny("BertForSequenceClassification", output_hidden_states=True, **NO_DROPOUT)
    expected, actual = (train(made, texts(False), choice) for choice in (False, True))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_model_is_as_before_after_run(train, make_args):
    made = tiny("BertForSequenceClassification", **NO_DROPOUT)
    trainer = Trainer(made, make_args(max_steps=1, padding_free=True), train_dataset=texts(False))
    trainer.train()
    assert not any("forward" in vars(module) for module in made.modules())
    assert not any(module._forward_pre_hooks for module in made.modules())


@pytest.fixture
def figures(mps, make_args):
    """Trains without padding or with it, and gives the figures of each step but the first two."""

    def train(name, choice):
        callback = SimulationCallback(mps)
        rows = texts(is_by_token(name), lengths=(5, 9, 12, 3))
        args = make_args(max_steps=6, padding_free=choice, logging_steps=100, per_device_train_batch_size=4)
        made = tiny(name, **{**DECODERS, **ENCODERS}[name])
        Trainer(made, args, train_dataset=rows, callbacks=[callback]).train()
        return callback.steps[2:]

    return train


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForSequenceClassification"])
def test_step_waits_and_copies_no_more(figures, name):
    padded, row = figures(name, False), figures(name, True)
    assert [step.blocking_reads for step in row] == [0] * len(row)
    assert [step.host_to_device for step in row] == [step.host_to_device for step in padded]
    assert row[-1].new_graphs == 0


def test_first_lines_and_report_name_it(make_args):
    args = make_args(max_steps=2, padding_free=True, report=True)
    trainer = Trainer(tiny("LlamaForCausalLM"), args, train_dataset=texts(True))
    trainer.train()
    line = "  leaves out padding where it can"
    assert line in first_lines(args, trainer.state, trainer.model, None)
    pages = [path.read_text(encoding="utf-8") for path in Path(args.output_dir).rglob("*.html")]
    assert any("padding: left out, 54% of" in page for page in pages)
