"""Attention in chunks in models of transformers: the losses of their own attention, and what keeps to it."""

from pathlib import Path
from unittest import mock

import pytest
import torch
from transformers import masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert import modeling_bert

from mps_trainer import MisconfigurationException, TrainingArguments
from mps_trainer.model import attention_patching
from mps_trainer.model.attention_masks import ChunkedMask, Reach
from tests.conftest import callback, logged, refusal
from tests.tiny import tiny, with_lora

pytestmark = pytest.mark.every_device
WORDS, LENGTH = 32, 24


def llama(kind="LlamaForCausalLM", **settings):
    return tiny(kind, **{"num_attention_heads": 4, "num_key_value_heads": 2, **settings})


def bert(**settings):
    return tiny("BertForMaskedLM", **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **settings})


def texts(count=64, padding=False, packed=False):
    tokens = torch.randint(1, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    for number, row in enumerate(rows):
        if padding:
            row["attention_mask"] = (torch.arange(LENGTH) < LENGTH - number % 7).long()
        if packed:
            first = 5 + number % 9
            row["position_ids"] = torch.cat([torch.arange(first), torch.arange(LENGTH - first)])
    return rows


def images(count=64):
    pixels = torch.randn(count, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    return [{"pixel_values": each, "labels": number % 2} for number, each in enumerate(pixels)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("mps_trainer.model.chunked_attention.ROWS", 8)


@pytest.fixture
def calls(monkeypatch):
    made = mock.Mock(wraps=attention_patching.chunked_attention)
    monkeypatch.setattr(attention_patching, "chunked_attention", made)
    return made


@pytest.fixture
def train(trained):
    def run(model, data, chunked, steps=4, trainer=None, **settings):
        given = {"model": model, "train_dataset": data, "eval_dataset": data[:8], **(trainer or {})}
        return trained(given, max_steps=steps, chunked_attention=chunked, learning_rate=1e-2, **settings)

    return run


def losses(trainer):
    return logged(trainer, "loss") + logged(trainer, "grad_norm")


PADDED = texts(padding=True)
OTHER_SETTINGS = [
    {"gradient_checkpointing": True},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    {"gradient_accumulation_steps": 2},
    {"bf16": True},
    {"fp16": True},
]


@pytest.mark.parametrize(
    ("model", "data", "settings"),
    [
        *(
            (model, texts(**kind), {})
            for model in (llama, lambda: llama("MistralForCausalLM", sliding_window=7))
            for kind in ({}, {"padding": True}, {"packed": True})
        ),
        *((lambda: llama(head_dim=32), texts(packed=each), {}) for each in (False, True)),  # fused on mps
        (bert, texts(), {}),
        (lambda: tiny("ViTForImageClassification", image_size=20, patch_size=4, num_labels=2), images(), {}),
        (lambda: with_lora(llama()), texts(), {}),
        (lambda: llama(attn_implementation="eager"), PADDED, {}),
        (lambda: bert(attn_implementation="eager"), PADDED, {}),
        *((model, PADDED, settings) for model in (llama, bert) for settings in OTHER_SETTINGS),
    ],
)
def test_losses_and_gradients_are_those_of_the_models_own_attention(train, calls, model, data, settings):
    before = dict(ALL_ATTENTION_FUNCTIONS), dict(ALL_MASK_ATTENTION_FUNCTIONS)
    near = 0.03 if settings.keys() & {"bf16", "fp16"} else 2e-5  # 8 bits
    plain = losses(train(model(), data, False, **settings))
    assert not calls.called
    assert losses(train(model(), data, True, **settings)) == pytest.approx(plain, rel=near)
    assert calls.call_count >= 2 * 4
    assert settings or calls.call_count == 2 * 4
    assert (dict(ALL_ATTENTION_FUNCTIONS), dict(ALL_MASK_ATTENTION_FUNCTIONS)) == before


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_resumes_bit_identical(assert_resumes, checkpointing):
    def parts():
        return {"model": bert(attention_probs_dropout_prob=0.3), "train_dataset": texts(), "eval_dataset": None}

    saving = {"max_steps": 6, "learning_rate": 1e-2, "save_strategy": "steps", "save_steps": 3}
    assert_resumes(3, parts, chunked_attention=True, gradient_checkpointing=checkpointing, **saving)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: llama("Gemma2ForCausalLM", head_dim=4, sliding_window=9), "caps the scores"),
        (lambda: tiny("T5ForConditionalGeneration"), "adds a position bias to the scores"),
    ],
)
def test_what_it_cannot_do_stays_with_the_model_and_is_told_once(train, calls, caplog, model, reason):
    data = texts()
    plain = losses(train(model(), data, False))
    caplog.clear()
    trainer = train(model(), data, True)
    assert losses(trainer) == pytest.approx(plain, rel=1e-6)
    assert not calls.called
    assert attention_patching.describe_attention(trainer.model, trainer.args) is None
    told = [record.getMessage() for record in caplog.records if record.name == attention_patching.__name__]
    assert [reason in text and "its own attention" in text for text in told] == [True]


@pytest.mark.parametrize("in_config", [False, True])
def test_attention_weights_that_are_asked_for_come_from_the_models_own(calls, in_config):
    model = llama(attn_implementation="eager", output_attentions=in_config)
    given = texts(1)[0]["input_ids"][None]
    with attention_patching.attention_chunked(1):
        found = model(input_ids=given, **({} if in_config else {"output_attentions": True})).attentions
    assert not calls.called
    assert [each.shape for each in found] == [(1, 4, LENGTH, LENGTH)] * 2


def test_short_inputs_take_the_models_eager_attention_whatever_its_name(calls):
    model = tiny("TimesFmModel", head_dim=8, attn_implementation="eager")
    inputs = torch.randn(2, 64), torch.zeros(2, 64), torch.zeros(2, 1).long()  # values, padding, frequency
    expected = model(*inputs).last_hidden_state
    with attention_patching.attention_chunked(1024):
        assert torch.equal(model(*inputs).last_hidden_state, expected)
    assert not calls.called


def test_evaluation_and_generation_are_the_models_own(train, calls):
    evaluated = []

    def generate(model, **_):
        calls.reset_mock()
        with torch.no_grad():
            model.generate(texts(1)[0]["input_ids"][None].to(model.device), max_new_tokens=2, do_sample=False)
        assert not calls.called

    looks = callback(on_step_end=generate, on_evaluate=lambda **_: evaluated.append(calls.call_count))
    train(llama(), texts(), True, 2, trainer={"callbacks": [looks]}, eval_strategy="steps", eval_steps=1)
    assert evaluated == [0, 0]


def test_by_default_it_is_for_long_texts_on_mps(train, calls, monkeypatch, device):
    monkeypatch.setattr(attention_patching, "SHORTEST", LENGTH)
    train(llama(), texts(), None, 1)
    assert calls.call_count == (2 if device == "mps" else 0)
    calls.reset_mock()
    monkeypatch.setattr(attention_patching, "SHORTEST", LENGTH + 1)
    train(llama(), texts(), None, 1)
    assert not calls.called


def test_the_first_lines_and_the_report_name_it(train, make_model, device):
    described = {}
    for chunked in (None, True, False):
        trainer = train(llama(max_position_embeddings=4096), texts(), chunked, 1, report=True)
        page = (Path(trainer.args.output_dir) / "report.html").read_text()
        assert ('<th scope="row">attention</th><td>in chunks</td>' in page) is bool(chunked)
        described[chunked] = attention_patching.describe_attention(trainer.model, trainer.args)
    long = "attention in chunks for texts of 1,024 tokens or more"
    assert described == {None: long if device == "mps" else None, True: "attention in chunks", False: None}
    assert attention_patching.describe_attention(llama(), trainer.args) is None
    trainer.args.chunked_attention = True
    for model in (make_model(), tiny("BloomForCausalLM"), tiny("MambaForCausalLM")):  # without transformers' attention
        assert attention_patching.describe_attention(model, trainer.args) is None
    gemma = tiny("Gemma2ForCausalLM")
    gemma.model.layers[0].self_attn.attn_logit_softcapping = None  # MiMo V2 Flash has such layers
    for model in (gemma, tiny("LayoutLMForTokenClassification")):
        assert attention_patching.describe_attention(model, trainer.args) == "attention in chunks"


def test_other_uses_of_a_mask_make_it_whole():
    mask = ChunkedMask(
        lambda *index: index[3] <= index[2], Reach(0), 1, 4, 4, torch.device("cpu"),
        make=lambda **skips: torch.ones(1, 1, 4, 4).tril(),
    )  # fmt: skip
    whole = torch.ones(1, 1, 4, 4).tril()
    assert torch.equal(mask[:, :, 1:], whole[:, :, 1:])
    assert torch.equal(torch.add(mask, other=1), whole + 1)
    assert torch.equal(torch.cat([mask, whole], dim=-1), torch.cat([whole, whole], dim=-1))  # T5Gemma 2 does so
    assert mask.ndim == 4
    assert torch.equal(mask == 0, whole == 0)
    assert torch.equal(1 - mask, 1 - whole)
    assert len(mask) == 1


def test_keys_that_are_added_after_their_mask_was_made_are_refused():
    query, key = torch.randn(1, 2, 4, 4, requires_grad=True), torch.randn(1, 2, 6, 4)
    mask = ChunkedMask(lambda *index: index[3] <= index[2], Reach(0), 1, 4, 4, torch.device("cpu"))
    with attention_patching.attention_chunked(1), pytest.raises(MisconfigurationException, match="was made for 4"):
        ALL_ATTENTION_FUNCTIONS["sdpa"](torch.nn.Module(), query, key, key, mask)


def test_a_mask_with_numbers_for_each_head_stays_with_the_models_own(calls, monkeypatch):
    monkeypatch.setattr("mps_trainer.model.chunked_attention.BLOCK", 2**12)
    query, key, value = torch.randn(3, 2, 4, LENGTH, 8, requires_grad=True)
    given = torch.nn.Module(), query, key, value, torch.randn(2, 4, LENGTH, LENGTH)
    expected, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](*given)
    with attention_patching.attention_chunked(1):
        found, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](*given)
    assert torch.equal(found, expected)
    assert not calls.called


def test_one_query_sees_all_keys_and_eager_attention_has_its_mask_alone(calls):
    """As in sdpa_attention_forward and eager_attention_forward of transformers."""
    query, keys = torch.randn(1, 2, 1, 4), torch.randn(2, 1, 2, 5, 4)
    module = torch.nn.Module()
    for kind in ("sdpa", "eager"):
        for length in (1, 5):
            given = query.expand(1, 2, length, 4).clone().requires_grad_()
            mask = length == 5 and kind == "sdpa"
            expected = torch.nn.functional.scaled_dot_product_attention(given, *keys, is_causal=mask).transpose(1, 2)
            with attention_patching.attention_chunked(1):
                attend = ALL_ATTENTION_FUNCTIONS.get_interface(kind, modeling_bert.eager_attention_forward)
                found, _ = attend(module, given, *keys, None, is_causal=True)
            torch.testing.assert_close(found, expected)
    assert calls.call_count == 4


def test_compiled_models_are_refused_or_left_alone():
    said = refusal(TrainingArguments, "out", torch_compile=True, chunked_attention=True)
    assert "chunked_attention=True does not go with torch_compile=True" in said
    args = TrainingArguments("out", torch_compile=True)
    assert attention_patching.shortest_chunked(args, torch.device("mps")) is None


def test_packed_rows_compute_each_text_alone_and_do_not_ask_the_device(train, monkeypatch, device):
    seen, asked = [], []
    keys = ChunkedMask.keys

    def noted(mask, start, end):
        seen.append(keys(mask, start, end))
        return seen[-1]

    monkeypatch.setattr(ChunkedMask, "keys", noted)
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", asked.append)  # it waits for the device
    row = {"input_ids": torch.arange(1, 21), "labels": torch.arange(1, 21)}
    row["position_ids"] = torch.cat([torch.arange(5), torch.arange(12), torch.arange(3)])
    train(llama(), [row] * 8, True, steps=1, per_device_train_batch_size=1, eval_strategy="no")
    assert set(seen) == {(0, 5), (5, 13), (5, 20)}  # blocks of 8 queries; the last has the end of a text and another
    assert not asked
