"""The last layer of a classifier, computed for the first token alone."""

import copy
import pickle

import pytest
import torch
import transformers

from mps_trainer.model.patches import unread_tokens
from mps_trainer.model.patches.unread_tokens import CLASSIFIERS, last_layer, unread_tokens_skipped
from mps_trainer.model.preparation import skips_unread_tokens
from tests.conftest import weights
from tests.tiny import tiny, with_lora

CLASSIFIER, WITH_HEAD = "BertForSequenceClassification", "RobertaForSequenceClassification"


def made(name=CLASSIFIER, dropout=0.0, attention="sdpa", **settings):
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return tiny(name, **{**rates, "embedding_size": 16, "attn_implementation": attention, **settings})


def batch(size=3, length=6):
    randoms = torch.Generator().manual_seed(1)
    inputs = {"input_ids": torch.randint(3, 64, (size, length), generator=randoms)}
    inputs["attention_mask"] = (torch.arange(length) < torch.tensor([[length], [length - 2], [1]])[:size]).long()
    return {**inputs, "labels": torch.tensor([0, 1, 1])[:size]}


@pytest.fixture
def computed(monkeypatch):
    """The shapes of what comes to layers that are computed for the first token alone."""
    calls, plain = [], unread_tokens._first_token

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


def assert_close(given, expected):
    torch.testing.assert_close(given, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings", "changed"),
    [
        *((name, {"attention": kind}, {}) for name in CLASSIFIERS for kind in ("sdpa", "eager")),
        *((name, {"chunk_size_feed_forward": 3}, {}) for name in CLASSIFIERS),
        (CLASSIFIER, {}, {"attention_mask": None}),
        (CLASSIFIER, {}, {"attention_mask": torch.ones(3, 6, dtype=torch.long)}),
        (CLASSIFIER, {}, {"attention_mask": torch.tril(torch.ones(6, 6)).bool().expand(3, 1, 6, 6)}),
        (CLASSIFIER, {}, {"input_ids": None, "inputs_embeds": torch.linspace(-1, 1, 288).reshape(3, 6, 16)}),
        (CLASSIFIER, {}, {"token_type_ids": torch.ones(3, 6, dtype=torch.long)}),
    ],
)
def test_logits_and_gradients_are_those_of_the_whole_layer(name, settings, changed, computed):
    model, inputs = made(name, **settings), {**batch(), **changed}
    expected = gradients(model, **inputs)
    last_layer(model)
    computed.clear()  # the probe's
    with unread_tokens_skipped(model, True):
        given = gradients(model, **inputs)
    assert computed == [(3, 6, 16)]
    assert_close(given, expected)


@pytest.mark.parametrize("asked", ["hidden_states", "attentions"])
@pytest.mark.parametrize("where", ["call", "config"])
def test_hidden_states_and_attentions_that_are_asked_for_are_whole(asked, where):
    model = made(attention="eager").eval()
    inputs = batch() | ({f"output_{asked}": True} if where == "call" else {})
    setattr(model.config, f"output_{asked}", where == "config")
    with torch.no_grad():
        expected = model(**inputs)[asked]
        with unread_tokens_skipped(model, True):
            given = model(**inputs)[asked]
    assert len(given) >= 2
    torch.testing.assert_close(given, expected)


def test_the_base_model_by_itself_is_whole_and_the_model_as_before_afterwards():
    model = made().eval()
    inputs = {name: each for name, each in batch().items() if name != "labels"}
    with torch.no_grad(), unread_tokens_skipped(model, True), unread_tokens_skipped(model, True):
        assert model.bert(**inputs).last_hidden_state.shape == (3, 6, 16)
        with pytest.raises(IndexError):
            model(input_ids=torch.full((1, 4), 1000))
        assert model.bert(**inputs).last_hidden_state.shape == (3, 6, 16)
    with pytest.raises(KeyError), unread_tokens_skipped(model, True):
        raise KeyError
    assert not any("forward" in vars(module) for module in model.modules())


def hook_of_all(model, hook):
    own = model.bert.encoder
    return torch.nn.modules.module.register_module_forward_hook(
        lambda module, *given: hook(module, *given) if module is own else None
    )


def own_forward(model, hook):
    part = model.bert.encoder.layer[1].intermediate
    plain = part.forward
    part.forward = lambda hidden: hook(part, hidden) or plain(hidden)


def registered(place, kind="register_forward_hook"):
    return lambda model, hook: getattr(model.get_submodule(place), kind)(hook)


ON_HEAD = registered("classifier", "register_forward_pre_hook")  # a head with a hook gets all tokens


@pytest.mark.parametrize(
    "watch",
    [
        registered("bert.encoder.layer.1"),
        registered("bert.encoder.layer.1", "register_full_backward_hook"),
        registered("bert.encoder.layer.1", "register_full_backward_pre_hook"),
        registered("bert.encoder.layer.1.output.dense", "register_forward_pre_hook"),
        registered("bert.encoder"),
        registered("bert"),
        registered("bert.pooler", "register_forward_pre_hook"),
        ON_HEAD,
        hook_of_all,
        own_forward,
    ],
)
def test_hooks_see_all_tokens(watch):
    model, seen = made(WITH_HEAD if watch is ON_HEAD else CLASSIFIER), []
    hook = watch(model, lambda module, *given: seen.append(shapes_in(given[-1])))
    try:
        model(**batch()).loss.backward()
        with unread_tokens_skipped(model, True):
            model(**batch()).loss.backward()
    finally:
        if hook is not None:
            hook.remove()
    assert seen[0] == seen[1] != []


def shapes_in(value):
    if isinstance(value, torch.Tensor):
        return [tuple(value.shape)]
    if isinstance(value, dict):
        value = list(value.values())
    return [shape for each in value for shape in shapes_in(each)] if isinstance(value, list | tuple) else []


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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_models_of_their_own(copied):
    model = made().eval()
    with torch.no_grad():
        with unread_tokens_skipped(model, True):
            other = copied(model)
            torch.testing.assert_close(other(**batch()).logits, model(**batch()).logits)
        assert other.bert(batch()["input_ids"]).last_hidden_state.shape[1] == 6


class Mean(torch.nn.Module):
    """Mixes the tokens."""

    def forward(self, hidden, *_):
        return hidden.mean(1)


class Own(transformers.BertForSequenceClassification):
    """Reads the mean of all tokens."""


class OtherLayer(transformers.models.bert.modeling_bert.BertLayer):
    def forward(self, *args, **kwargs):
        return 2 * super().forward(*args, **kwargs)


OtherLayer.__module__, OtherLayer.__name__ = OtherLayer.__base__.__module__, "BertLayer"


def with_part(place, part, name=CLASSIFIER):
    model = made(name)
    model.set_submodule(place, part)
    return model


LEFT_ALONE = {
    "own": lambda: Own(made().config),
    "decoder": lambda: made(is_decoder=True),
    "for tokens": lambda: made("BertForTokenClassification"),
    "a plain module": lambda: torch.nn.Linear(2, 2),
    "a layer that computes otherwise": lambda: with_part("bert.encoder.layer.1", OtherLayer(made().config)),
    "no layer": lambda: with_part("bert.encoder.layer", torch.nn.ModuleList()),
    "own head": lambda: with_part("classifier", Mean(), WITH_HEAD),
    "own pooler": lambda: with_part("bert.pooler", Mean()),
    "a convolution in the layer": lambda: with_part("bert.encoder.layer.1.output.dense", torch.nn.Conv1d(6, 6, 1)),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_models_are_left_alone(name):
    assert last_layer(LEFT_ALONE[name]()) is None


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


def rows(count=24, length=12):
    randoms = torch.Generator().manual_seed(4)
    for index in range(count):
        seen = torch.arange(length) < torch.randint(3, length, (), generator=randoms)
        tokens = torch.randint(3, 64, (length,), generator=randoms) * seen
        yield {"input_ids": tokens, "attention_mask": seen.long(), "labels": index % 2}


def adapted(name=CLASSIFIER, **settings):
    return with_lora(made(name), task_type="SEQ_CLS", **settings)


@pytest.mark.every_device
@pytest.mark.parametrize(
    ("make", "settings", "layers"),
    [
        (made, {}, 3),
        (made, {"activation_checkpointing": True}, 6),
        (made, {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": True}}, 6),
        (made, {"eval_strategy": "steps", "eval_steps": 3}, 3 + 3),
        (made, {"bf16": True}, 3),
        (lambda: adapted(target_modules=["query", "value", "dense"]), {}, 3),
        (lambda: adapted(target_modules=["query"], mixed=True), {}, 3),
        # a head that is trained beside adapters
        (lambda: adapted(WITH_HEAD, target_modules=["query"], modules_to_save=["classifier"]), {}, 3),
    ],
)
def test_a_run_learns_the_same_weights(make, settings, layers, trained, computed):
    def run(**more):
        torch.manual_seed(6)
        data = {"model": make(), "train_dataset": [*rows()], "eval_dataset": [*rows()]}
        return trained(data, max_steps=3, learning_rate=1e-3, padding_free=False, **settings, **more)

    plain = run()
    assert not computed
    short = run(skip_unread_tokens=True)
    assert len([each for each in computed if each[0] == 8]) == layers
    near = 1e-3 if "bf16" in settings else 1e-5
    torch.testing.assert_close(weights(short.model), weights(plain.model), atol=near, rtol=1e-4)
    computed.clear()
    given, expected = short.predict(short.eval_dataset), plain.predict(plain.eval_dataset)
    assert len(computed) == 3
    torch.testing.assert_close(
        torch.tensor(given.predictions), torch.tensor(expected.predictions), atol=10 * near, rtol=0
    )
    assert given.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], abs=near)


def test_a_compiled_or_a_sharded_model_is_left_alone(make_args):
    assert skips_unread_tokens(make_args(skip_unread_tokens=True))
    assert not skips_unread_tokens(make_args())
    assert not skips_unread_tokens(make_args(skip_unread_tokens=True, torch_compile=True))
    sharded = make_args(skip_unread_tokens=True)
    sharded.fsdp = "full_shard"
    assert not skips_unread_tokens(sharded)
