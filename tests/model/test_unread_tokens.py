"""The last layer of a classifier, computed for the first token alone."""

import copy
import io

import pytest
import torch
import transformers

from mps_trainer import Trainer, TrainingArguments
from mps_trainer.model.patches import unread_tokens
from mps_trainer.model.patches.unread_tokens import CLASSIFIERS, last_layer, unread_tokens_skipped
from tests.conftest import weights
from tests.tiny import tiny


def made(name="BertForSequenceClassification", dropout=0.0, attention="sdpa", **settings):
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return tiny(name, **{**rates, "embedding_size": 16, "attn_implementation": attention, **settings})


def batch(size=3, length=6):
    randoms = torch.Generator().manual_seed(1)
    inputs = {"input_ids": torch.randint(3, 64, (size, length), generator=randoms)}
    inputs["attention_mask"] = (torch.arange(length) < torch.tensor([[length], [length - 2], [1]])[:size]).long()
    return {**inputs, "labels": torch.tensor([0, 1, 1])[:size]}


@pytest.fixture
def computed(monkeypatch):
    """Counts the layers that are computed for the first token alone."""
    calls = []
    plain = unread_tokens._first_token

    def counted(layer, hidden, *args, **kwargs):
        calls.append(tuple(hidden.shape))
        return plain(layer, hidden, *args, **kwargs)

    monkeypatch.setattr(unread_tokens, "_first_token", counted)
    return calls


def gradients(model, **inputs):
    model.zero_grad()
    outputs = model(**inputs)
    outputs.loss.backward()
    grads = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return outputs.logits.detach(), grads


def assert_close(given, expected, atol=1e-6):
    logits, of_weights = given
    torch.testing.assert_close(logits, expected[0], atol=atol, rtol=1e-5)
    assert of_weights.keys() == expected[1].keys()
    for name, gradient in of_weights.items():
        torch.testing.assert_close(
            gradient, expected[1][name], atol=atol, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_like_the_whole_layer(model, inputs, computed):
    expected = gradients(model, **inputs)
    last_layer(model)
    computed.clear()  # the probe's
    with unread_tokens_skipped(model, True):
        given = gradients(model, **inputs)
    assert computed == [(3, 6, 16)]
    assert_close(given, expected)


@pytest.mark.parametrize("settings", [{"attention": "sdpa"}, {"attention": "eager"}, {"chunk_size_feed_forward": 3}])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_logits_and_gradients_are_those_of_the_whole_layer(name, settings, computed):
    assert_like_the_whole_layer(made(name, **settings), batch(), computed)


@pytest.mark.parametrize(
    "changed",
    [
        {"attention_mask": None},
        {"attention_mask": torch.ones(3, 6, dtype=torch.long)},
        {"attention_mask": torch.tril(torch.ones(6, 6)).bool().expand(3, 1, 6, 6)},
        {"input_ids": None, "inputs_embeds": torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(2))},
        {"token_type_ids": torch.ones(3, 6, dtype=torch.long)},
    ],
)
def test_kinds_of_inputs(changed, computed):
    assert_like_the_whole_layer(made(), {**batch(), **changed}, computed)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_under_activation_checkpointing(use_reentrant, computed):
    model = made(dropout=0.3).train()
    with unread_tokens_skipped(model, True):
        torch.manual_seed(3)
        expected = gradients(model, **batch())
        computed.clear()
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        torch.manual_seed(3)
        given = gradients(model, **batch())
    assert computed == [(3, 6, 16)] * 2  # the second is of the backward pass
    assert_close(given, expected)


@pytest.mark.parametrize("asked", ["output_hidden_states", "output_attentions"])
@pytest.mark.parametrize("where", ["call", "config"])
def test_hidden_states_and_attentions_that_are_asked_for_are_whole(asked, where):
    model = made(attention="eager").eval()
    inputs = batch()
    if where == "config":
        setattr(model.config, asked, True)
    else:
        inputs[asked] = True
    with torch.no_grad():
        expected = model(**inputs)
        with unread_tokens_skipped(model, True):
            given = model(**inputs)
    name = asked.removeprefix("output_")
    assert len(given[name]) == len(expected[name]) >= 2
    for one, other in zip(given[name], expected[name], strict=True):
        torch.testing.assert_close(one, other)


def test_the_base_model_by_itself_is_whole():
    model = made().eval()
    inputs = {name: each for name, each in batch().items() if name != "labels"}
    with torch.no_grad(), unread_tokens_skipped(model, True):
        assert model.bert(**inputs).last_hidden_state.shape == (3, 6, 16)
        with pytest.raises(IndexError):
            model(input_ids=torch.full((1, 4), 1000))
        assert model.bert(**inputs).last_hidden_state.shape == (3, 6, 16)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("bert.encoder.layer.1", "register_forward_hook"),
        ("bert.encoder.layer.1", "register_full_backward_hook"),
        ("bert.encoder.layer.1", "register_full_backward_pre_hook"),
        ("bert.encoder.layer.1.output.dense", "register_forward_pre_hook"),
        ("bert.encoder", "register_forward_hook"),
        ("bert", "register_forward_hook"),
        ("bert.pooler", "register_forward_pre_hook"),
        ("classifier", "register_forward_pre_hook"),
    ],
)
def test_hooks_see_all_tokens(place, kind):
    model = made("RobertaForSequenceClassification" if place == "classifier" else "BertForSequenceClassification")
    seen = []
    getattr(model.get_submodule(place), kind)(lambda module, *given: seen.append(shapes_in(given[-1])))
    model(**batch()).loss.backward()
    with unread_tokens_skipped(model, True):
        model(**batch()).loss.backward()
    assert seen[0] == seen[1] != []


def shapes_in(value):
    if isinstance(value, torch.Tensor):
        return [tuple(value.shape)]
    if isinstance(value, dict):
        value = list(value.values())
    return [shape for each in value for shape in shapes_in(each)] if isinstance(value, list | tuple) else []


def test_hooks_of_all_modules_see_all_tokens():
    model = made().eval()
    seen = []
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, output: seen.append(shapes_in(output)[0]) if module is model.bert.encoder else None
    )
    try:
        with torch.no_grad(), unread_tokens_skipped(model, True):
            model(**batch())
    finally:
        hook.remove()
    assert seen == [(3, 6, 16)]


def test_a_forward_of_ones_own_on_a_part_sees_all_tokens():
    model = made().eval()
    part = model.bert.encoder.layer[1].intermediate
    plain, seen = part.forward, []
    part.forward = lambda hidden: seen.append(hidden.shape[1]) or plain(hidden)
    with torch.no_grad(), unread_tokens_skipped(model, True):
        model(**batch())
    assert seen == [6]


def test_the_model_is_as_before_afterwards():
    model = made()
    with pytest.raises(IndexError), unread_tokens_skipped(model, True), unread_tokens_skipped(model, True):
        model(input_ids=torch.full((1, 4), 1000))
    assert not any("forward" in vars(module) for module in model.modules())


def test_attention_of_ones_own_gets_all_queries(computed):
    seen = []

    def attend(module, query, *args, **kwargs):
        seen.append(query.shape[2])
        return transformers.integrations.sdpa_attention.sdpa_attention_forward(module, query, *args, **kwargs)

    transformers.AttentionInterface.register("counted", attend)
    model = made(attention="counted").eval()
    with torch.no_grad(), unread_tokens_skipped(model, True):
        model(**{**batch(), "attention_mask": None})
    assert seen == [6, 6]


def test_a_wrapper_that_others_put_around_forward_stays():
    model = made().eval()
    inputs = batch()
    with torch.no_grad():
        expected = model(**inputs).logits
        with unread_tokens_skipped(model, True):
            inside = model.forward
            model.forward = lambda *args, **kwargs: inside(*args, **kwargs)
            wrapper = model.forward
        assert model.forward is wrapper
        torch.testing.assert_close(model(**inputs).logits, expected)
        assert model.bert(inputs["input_ids"]).last_hidden_state.shape[1] == 6


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_are_models_of_their_own(how):
    model = made().eval()
    with unread_tokens_skipped(model, True):
        if how == "deepcopy":
            other = copy.deepcopy(model)
        else:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            other = torch.load(file, weights_only=False)
        with torch.no_grad():
            torch.testing.assert_close(other(**batch()).logits, model(**batch()).logits)
    with torch.no_grad():
        assert other.bert(batch()["input_ids"]).last_hidden_state.shape[1] == 6


def not_taken():
    class Own(transformers.BertForSequenceClassification):
        """Reads the mean of all tokens."""

    yield "own", Own(made().config)
    yield "decoder", made(is_decoder=True)
    yield "for tokens", made("BertForTokenClassification")
    yield "a plain module", torch.nn.Linear(2, 2)
    layer = type(made().bert.encoder.layer[1])

    def twice(self, hidden, mask=None, **kwargs):
        return 2 * layer.forward(self, hidden, mask, **kwargs)

    otherwise = made()
    otherwise.bert.encoder.layer[1].__class__ = type(
        "BertLayer", (layer,), {"forward": twice, "__module__": layer.__module__}
    )
    yield "a layer that computes otherwise", otherwise
    without_layers = made()
    without_layers.bert.encoder.layer = torch.nn.ModuleList()
    yield "no layer", without_layers
    own_head = made("RobertaForSequenceClassification")
    own_head.classifier = Mean()
    yield "own head", own_head
    own_pooler = made()
    own_pooler.bert.pooler = Mean()
    yield "own pooler", own_pooler
    mixing = made()
    mixing.bert.encoder.layer[1].output.dense = torch.nn.Conv1d(6, 6, 1)
    yield "a convolution in the layer", mixing


class Mean(torch.nn.Module):
    """Mixes the tokens."""

    def forward(self, hidden, *_):
        return hidden.mean(1)


@pytest.mark.parametrize(("name", "model"), list(not_taken()), ids=lambda each: each if isinstance(each, str) else "")
def test_other_models_are_left_alone(name, model):
    assert last_layer(model) is None


def test_attention_is_dropped_in_training_alone():
    model = made(attention_probs_dropout_prob=0.5)
    with torch.no_grad(), unread_tokens_skipped(model, True):
        model.bert.eval()
        last = model.bert.encoder.layer[1].attention.self
        still = [model(**batch()).logits for _ in range(2)]
        last.train()
        dropped = [model(**batch()).logits for _ in range(2)]
    assert torch.equal(*still)
    assert not torch.equal(*dropped)


def test_asking_draws_no_random_number():
    model = made()
    unread_tokens._is_known.cache_clear()
    before = torch.get_rng_state()
    assert last_layer(model) is not None
    assert torch.equal(torch.get_rng_state(), before)


def rows(count=24):
    randoms = torch.Generator().manual_seed(4)
    for index in range(count):
        length = int(torch.randint(3, 12, (), generator=randoms))
        yield {"input_ids": torch.randint(3, 64, (length,), generator=randoms).tolist(), "labels": index % 2}


def collated(examples):
    length = max(len(each["input_ids"]) for each in examples)
    ids = torch.tensor([each["input_ids"] + [0] * (length - len(each["input_ids"])) for each in examples])
    labels = torch.tensor([each["labels"] for each in examples])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def trained(model, folder, **settings):
    args = TrainingArguments(folder, max_steps=3, per_device_train_batch_size=8, learning_rate=1e-3, report_to="none",
                             disable_tqdm=True, save_strategy="no", **settings)  # fmt: skip
    trainer = Trainer(model, args, train_dataset=list(rows()), eval_dataset=list(rows()), data_collator=collated)
    trainer.train()
    return trainer


def assert_close_weights(model, other):
    for name, weight in weights(other).items():
        torch.testing.assert_close(weights(model)[name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.every_device
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_run_learns_the_same_weights(checkpointing, tmp_path, computed):
    settings = {"activation_checkpointing": checkpointing}
    plain = trained(made(), tmp_path, **settings)
    assert not computed
    short = trained(made(), tmp_path, skip_unread_tokens=True, **settings)
    assert len([each for each in computed if each[0] == 8]) == (6 if checkpointing else 3)
    assert_close_weights(short.model, plain.model)
    computed.clear()
    given, expected = short.predict(short.eval_dataset), plain.predict(plain.eval_dataset)
    assert len(computed) == 3
    assert torch.allclose(torch.tensor(given.predictions), torch.tensor(expected.predictions), atol=1e-4)
    assert given.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], abs=1e-5)


def test_evaluations_during_a_run_skip_too(tmp_path, computed):
    trained(made(), tmp_path, skip_unread_tokens=True, eval_strategy="steps", eval_steps=3)
    assert len([each for each in computed if each[0] == 8]) == 3 + 3


def test_with_adapters(tmp_path, computed):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value", "dense"], lora_dropout=0.0)
    torch.manual_seed(6)
    plain = trained(peft.get_peft_model(made(), copy.deepcopy(config)), tmp_path)
    torch.manual_seed(6)
    short = trained(peft.get_peft_model(made(), copy.deepcopy(config)), tmp_path, skip_unread_tokens=True)
    assert len([each for each in computed if each[0] == 8]) == 3
    assert_close_weights(short.model, plain.model)


def test_with_a_head_that_is_trained_beside_adapters(tmp_path, computed):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], modules_to_save=["classifier"])
    model = peft.get_peft_model(made("RobertaForSequenceClassification"), config)
    trained(model, tmp_path, skip_unread_tokens=True)
    assert len([each for each in computed if each[0] == 8]) == 3


def test_in_bfloat16(tmp_path, computed):
    short = trained(made(), tmp_path, skip_unread_tokens=True, bf16=True)
    assert len([each for each in computed if each[0] == 8]) == 3
    assert short.evaluate()["eval_loss"] < 2


def test_a_compiled_or_a_sharded_model_is_left_alone(tmp_path):
    from mps_trainer.model.preparation import skips_unread_tokens

    settings = {"report_to": "none", "use_cpu": True}
    assert skips_unread_tokens(TrainingArguments(tmp_path, skip_unread_tokens=True, **settings))
    assert not skips_unread_tokens(TrainingArguments(tmp_path, **settings))
    assert not skips_unread_tokens(
        TrainingArguments(tmp_path, skip_unread_tokens=True, torch_compile=True, **settings)
    )
    sharded = TrainingArguments(tmp_path, skip_unread_tokens=True, **settings)
    sharded.fsdp = "full_shard"
    assert not skips_unread_tokens(sharded)
