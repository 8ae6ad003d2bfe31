"""Attention that is not transformers' own is never replaced, and the tensors behind a mask may change."""

import functools
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface
from transformers.models.bert import modeling_bert
from transformers.models.llama import modeling_llama

from mps_trainer.model import attention_patching
from mps_trainer.model.attention_registries import is_of_transformers
from mps_trainer.model.patches.masks import AttentionMasks
from mps_trainer.model.patches.positions import positions_made_once
from mps_trainer.model.patches.rotary import NAME, rotations_in_few_kernels
from mps_trainer.model.patches.unread_tokens import last_layer, unread_tokens_skipped
from tests.conftest import callback, logged, messages_with
from tests.tiny import tiny

WORDS, LENGTH = 32, 12
EAGER = modeling_llama.eager_attention_forward


def llama(**settings):
    return tiny("LlamaForCausalLM", initializer_range=0.3, num_attention_heads=4, num_key_value_heads=2, **settings)


def batch():
    tokens = torch.randint(1, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "labels": tokens}


def rows():
    tokens = torch.randint(1, WORDS, (32, LENGTH), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in tokens]


class Own:
    """An attention function that caps its scores, and notes the masks that it gets."""

    def __init__(self):
        self.masks = []

    def __call__(self, module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        self.masks.append(attention_mask)
        out = nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=True)
        return out.tanh().transpose(1, 2), None


@pytest.fixture
def own():
    return Own()


@pytest.fixture
def restored():
    """Restores transformers' registries after a test."""
    registries = AttentionInterface, AttentionMaskInterface
    before = [dict(each._global_mapping) for each in registries]
    yield
    ALL_ATTENTION_FUNCTIONS._local_mapping.pop("sdpa", None)
    for registry, mapping in zip(registries, before, strict=True):
        registry._global_mapping.clear()
        registry._global_mapping.update(mapping)


@pytest.fixture
def calls(monkeypatch):
    made = []
    chunked = attention_patching.chunked_attention
    monkeypatch.setattr(attention_patching, "chunked_attention", lambda *args: made.append(args) or chunked(*args))
    return made


class OwnAttention(modeling_llama.LlamaAttention):
    """Follows transformers' documentation, with its own attention function as the default."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            project(hidden_states).view(shape).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = modeling_llama.apply_rotary_pos_emb(query, key, *position_embeddings)
        attend = modeling_llama.ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, own_eager_attention
        )
        out, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling, **kwargs)
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), weights


def own_eager_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    out, weights = EAGER(module, query, key, value, attention_mask, scaling, dropout)
    return out.tanh(), weights


def with_own_attention():
    model = llama(attn_implementation="eager")
    for number, layer in enumerate(model.model.layers):
        new = OwnAttention(model.config, number)
        new.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = new
    return model


@pytest.mark.parametrize("report", [False, True])
def test_a_function_given_to_get_interface_is_used_with_a_warning(trained, calls, caplog, report):
    def losses(chunked):
        caplog.clear()
        given = {"model": with_own_attention(), "train_dataset": rows()}
        trainer = trained(given, max_steps=2, chunked_attention=chunked, report=report)
        described = attention_patching.describe_attention(trainer.model, trainer.args)
        page = (Path(trainer.args.output_dir) / "report.html").read_text() if report else ""
        return logged(trainer, "loss"), described, "in chunks" in page

    plain, chunked = losses(False), losses(True)
    assert chunked == plain == (plain[0], None, False)
    assert not calls
    (said,) = messages_with(caplog, "is not a function of transformers")
    assert f"{__name__}.own_eager_attention is" in said


def registered(function):
    AttentionInterface.register("sdpa", function)


def set_in_the_instance(function):
    ALL_ATTENTION_FUNCTIONS["sdpa"] = function


@pytest.mark.parametrize("during", [False, True])
@pytest.mark.parametrize("put", [registered, set_in_the_instance])
def test_a_registered_function_is_used_with_the_masks_of_transformers_and_stays(restored, own, calls, put, during):
    if not during:
        put(own)
    with attention_patching.attention_chunked(1, llama()):
        put(own)
        llama()(**batch())
        llama()(**batch(), attention_mask=torch.tensor([[1] * LENGTH, [1] * 8 + [0] * 4]))
    assert not calls
    assert [type(mask) for mask in own.masks] == [type(None)] * 2 + [torch.Tensor] * 2
    assert {mask.dtype for mask in own.masks[2:]} == {torch.bool}
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is own
    assert attention_patching.describe_attention(llama(), CHUNKED) is None


class CHUNKED:  # arguments of a run
    chunked_attention, device, torch_compile = True, torch.device("cpu"), False


def test_a_function_that_wraps_the_one_it_finds_in_a_run_computes_without_chunks_after_it(restored, calls):
    model, given = llama(), batch()
    expected = model(**given).loss
    with attention_patching.attention_chunked(1, model):
        found = ALL_ATTENTION_FUNCTIONS["sdpa"]

        @functools.wraps(found)
        def doubled(*args, **kwargs):
            out, weights = found(*args, **kwargs)
            return 2 * out, weights

        AttentionInterface.register("sdpa", doubled)
        during = model(**given).loss
        assert len(calls) == 2
    calls.clear()
    torch.testing.assert_close(model(**given).loss, during)
    assert abs(during - expected) > 1e-3
    assert not calls
    AttentionInterface.register("sdpa", found)  # restores it
    assert is_of_transformers(ALL_ATTENTION_FUNCTIONS["sdpa"])
    assert torch.equal(model(**given).loss, expected)
    with attention_patching.attention_chunked(1, model):
        model(**given)
    assert len(calls) == 2


def test_only_functions_of_transformers_count_as_its_own():
    def eager_attention_forward(*args, **kwargs):
        return EAGER(*args, **kwargs)

    wrapping = functools.wraps(EAGER)(eager_attention_forward)
    assert wrapping.__module__ == EAGER.__module__
    assert is_of_transformers(EAGER, "eager")
    for function in (wrapping, eager_attention_forward, functools.partial(EAGER), nn.functional.softmax, Own()):
        assert not is_of_transformers(function)


def test_an_eager_attention_that_a_user_put_into_the_module_is_used(monkeypatch, own, calls):
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", own)
    model = llama(attn_implementation="eager")
    with attention_patching.attention_chunked(1, model):
        model(**batch())
    assert not calls
    assert [type(mask) for mask in own.masks] == [torch.Tensor] * 2


def test_a_layer_of_a_user_gets_a_tensor_as_mask(calls):
    model, seen = llama(), []
    attention = model.model.layers[0].self_attn
    plain = attention.forward

    def forward(*args, **kwargs):
        seen.append(kwargs["attention_mask"])
        return plain(*args, **kwargs)

    attention.forward = forward
    mask = torch.tensor([[1] * LENGTH, [1] * 8 + [0] * 4])
    with attention_patching.attention_chunked(1, model):
        model(**batch(), attention_mask=mask)
    assert type(seen[0]) is torch.Tensor
    assert len(calls) == 2


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_layers_that_compute_their_own_attention_are_not_described_as_chunked(attention):
    model = llama(attn_implementation=attention)
    assert attention_patching.describe_attention(model, CHUNKED) == "attention in chunks"
    first, second = (layer.self_attn for layer in model.model.layers)
    first.forward = lambda hidden_states, **kwargs: (hidden_states, None)
    assert attention_patching.describe_attention(model, CHUNKED) == "attention in chunks"
    second.forward = first.forward
    assert attention_patching.describe_attention(model, CHUNKED) is None


def test_mask_functions_of_users_are_called_as_transformers_calls_them(restored):
    called = []

    @functools.wraps(sdpa_mask)  # so it has the name of transformers'
    def hiding(**kwargs):
        called.append((kwargs["allow_is_causal_skip"], kwargs["allow_is_bidirectional_skip"]))
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(**{**kwargs, **skips}) & (torch.arange(kwargs["kv_length"]) < 5)

    AttentionMaskInterface.register("sdpa", hiding)
    model, given = tiny("BertForMaskedLM", attn_implementation="sdpa"), batch()
    given["attention_mask"] = torch.ones(2, LENGTH)
    model.eval()
    expected = model(**given).loss
    with attention_patching.attention_chunked(1, model):
        torch.testing.assert_close(model(**given).loss, expected)
    masks = AttentionMasks(torch.device("cpu"))
    with masks.in_use():
        torch.testing.assert_close(model(**given).loss, expected)
    assert called == [(False, True)] * 3


def test_a_function_of_a_user_gets_bool_masks_where_padding_is_made_of_numbers(restored, own):
    AttentionInterface.register("sdpa", own)
    masks = AttentionMasks(torch.device("cpu"))
    with masks.in_use():
        modeling_bert.BertModel(modeling_bert.BertConfig(**SMALL))(**batch_of_bert())
    assert [mask.dtype for mask in own.masks] == [torch.bool]


SMALL = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 40}


def batch_of_bert():
    return {"input_ids": batch()["input_ids"], "attention_mask": torch.tensor([[1] * LENGTH, [1] * 8 + [0] * 4])}


@pytest.mark.parametrize("change", ["registered", "layer"])
def test_unread_tokens_are_computed_for_attention_of_users(restored, monkeypatch, change):
    """A function that looks at positions of queries would take the only one for the first."""
    queries = []
    plain = modeling_bert.BertSelfAttention.forward

    def attend(module, query, key, value, attention_mask, **kwargs):
        queries.append(query.shape[2])
        return sdpa(module, query, key, value, attention_mask, **kwargs)

    def forward(self, hidden_states, *args, **kwargs):
        queries.append(hidden_states.shape[1])
        return plain(self, hidden_states, *args, **kwargs)

    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    model = tiny("BertForSequenceClassification")
    assert last_layer(model) is not None
    if change == "registered":
        AttentionInterface.register("sdpa", attend)
    else:
        monkeypatch.setattr(modeling_bert.BertSelfAttention, "forward", forward)
    with unread_tokens_skipped(model, True):
        model(**batch_of_bert())
    assert queries == [LENGTH] * 2


def test_a_rotation_of_a_user_is_not_replaced(monkeypatch):
    plain = modeling_llama.apply_rotary_pos_emb

    @functools.wraps(plain)
    def own_rotation(*args, **kwargs):
        return plain(*args, **kwargs)

    monkeypatch.setattr(modeling_llama, NAME, own_rotation)
    with rotations_in_few_kernels(llama(), True):
        assert modeling_llama.apply_rotary_pos_emb is own_rotation


def gradients(model, given, change=None, chunked=True):
    with attention_patching.attention_chunked(1 if chunked else None, model):
        loss = model(**given).loss
        if change is not None:
            change()
        loss.backward()
    found = [loss.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
    model.zero_grad()
    return found


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["attention_mask", "position_ids"])
def test_tensors_behind_a_mask_may_change_before_the_backward_pass(calls, name, checkpointing):
    model = llama()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    given = batch()
    if name == "attention_mask":
        given[name] = (torch.arange(LENGTH) < 9).repeat(2, 1)
    else:
        given[name] = torch.cat([torch.arange(5), torch.arange(LENGTH - 5)]).repeat(2, 1)
    expected = gradients(model.train(), given)
    found = gradients(model, given, given[name].zero_)
    torch.testing.assert_close(found, expected)
    assert calls


def test_a_mask_of_tokens_by_tokens_that_changes_before_the_backward_pass_is_an_error(calls):
    given = {**batch(), "attention_mask": torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()}
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(llama(), given, given["attention_mask"].zero_)
    assert calls


def test_changes_that_a_model_makes_in_place_to_a_chunked_mask_count(calls):
    def hide(module, args, kwargs):
        kwargs["attention_mask"].logical_and_(torch.arange(LENGTH) != 3)

    def losses(chunked):
        model = llama()
        model.model.layers[0].register_forward_pre_hook(hide, with_kwargs=True)
        mask = torch.tensor([[1] * LENGTH, [1] * 8 + [0] * 4])
        mask = mask if chunked else mask[:, None, None].bool() & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        return gradients(model, {**batch(), "attention_mask": mask}, chunked=chunked)

    torch.testing.assert_close(losses(True), losses(False))
    assert len(calls) == 2


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int64, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, LENGTH), (3, LENGTH, LENGTH), (2, 1, LENGTH + 1, LENGTH), (2, 1, LENGTH, 1)])
@pytest.mark.parametrize("autocast", [False, True])
def test_masks_are_accepted_and_refused_as_by_torch(kind, shape, autocast):
    query, key, value = torch.randn(3, 2, 4, LENGTH, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask = torch.ones(shape).to(kind)
    results = []
    for shortest in (None, 1):
        with attention_patching.attention_chunked(shortest), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            try:
                out, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](nn.Module(), query, key, value, mask)
                results.append(out.float())
            except RuntimeError as error:
                results.append(str(error))
    plain, chunked = results
    if isinstance(plain, str):
        assert chunked == plain
    else:
        torch.testing.assert_close(chunked, plain, rtol=2e-2 if autocast else 1e-5, atol=2e-2 if autocast else 1e-5)


def test_other_tensors_and_numbers_are_accepted_and_refused_as_by_torch(calls):
    one = torch.randn(2, 4, LENGTH, 8, requires_grad=True)
    few, double, short = one[:, :3], one.double(), one[:, :, :5]
    cases = [
        ((one[:1], one, one), {}),
        ((one, few, few), {}),
        ((one, double, one), {}),
        ((one, one, short), {}),
        ((one, one, one[..., :3]), {"dropout": 1.0}),
        ((one, one, one), {"dropout": 1.5}),
        ((one, one, one), {"dropout": torch.tensor(0.0)}),
        ((one, one, one), {"scaling": torch.tensor(0.5)}),
        ((one, one, one), {"scaling": nn.Parameter(torch.tensor(0.5))}),
        ((one, one, one), {"softcap": 3.0}),
        ((one, one, one), {"position_bias": torch.randn(1, 4, LENGTH, LENGTH, requires_grad=True)}),
    ]
    for tensors, settings in cases:
        results = []
        for shortest in (None, 1):
            with attention_patching.attention_chunked(shortest):
                try:
                    found, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](nn.Module(), *tensors, None, **settings)
                    results.append(found)
                except (RuntimeError, TypeError, ValueError) as error:
                    results.append(str(error))
        plain, chunked = results
        assert torch.equal(chunked, plain) if isinstance(plain, torch.Tensor) else chunked == plain
    assert not calls


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_learned_scale_gets_its_gradient(calls, caplog, attention):
    """With sdpa, torch refuses a parameter as the scale."""
    model = llama(attn_implementation=attention)
    for layer in model.model.layers:
        layer.self_attn.register_parameter("scale", nn.Parameter(torch.tensor(0.4)))
        layer.self_attn.scaling = layer.self_attn.scale if attention == "eager" else layer.self_attn.scale.detach()
    torch.testing.assert_close(gradients(model, batch()), gradients(model, batch(), chunked=False))
    assert not calls
    assert len(messages_with(caplog, "LlamaAttention scales its scores by a tensor")) == 1


@pytest.mark.parametrize("shape", [(1, 1, LENGTH, LENGTH), (1, 4, 1, LENGTH), (1, 1, 1, 1)])
def test_a_learned_mask_gets_its_gradient(calls, caplog, shape):
    query, key, value = torch.randn(3, 2, 4, LENGTH, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask, found = torch.rand(shape, requires_grad=True), []
    for shortest in (None, 1):
        with attention_patching.attention_chunked(shortest):
            out, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](nn.Module(), query, key, value, mask)
        found.append(torch.autograd.grad(out.square().sum(), mask)[0])
    assert torch.equal(*found)
    assert not calls
    assert len(messages_with(caplog, "Module has a mask with a gradient")) == 1


@pytest.mark.parametrize("where", ["attention", "layer", "everywhere", "model"])
def test_hooks_on_eager_attention_get_weights(calls, caplog, where):
    model, seen = llama(attn_implementation="eager"), []
    layer = model.model.layers[0]
    modules = {"attention": layer.self_attn, "layer": layer, "model": model}

    def look(module, args, out):
        if module is layer.self_attn:
            seen.append(out[1])

    hook = (
        nn.modules.module.register_module_forward_hook(look)
        if where == "everywhere"
        else modules[where].register_forward_hook(look)
    )
    with attention_patching.attention_chunked(1, model):
        model(**batch())
    hook.remove()
    assert len(calls) == {"attention": 1, "layer": 1, "everywhere": 0, "model": 2}[where]
    assert all(weights.shape == (2, 4, LENGTH, LENGTH) for weights in seen)
    told = messages_with(caplog, "LlamaAttention has a forward hook, which may read attention weights")
    assert len(told) == (where != "model")


def test_hooks_of_transformers_that_record_weights_do_not_count(calls):
    model = llama(attn_implementation="eager")
    with torch.no_grad():
        assert model(**batch(), output_attentions=True).attentions[0] is not None
    with attention_patching.attention_chunked(1, model):
        model(**batch())
    assert len(calls) == 2


def test_eager_attention_drops_nothing_in_evaluation_mode():
    query, key, value = torch.randn(3, 2, 4, LENGTH, 8, requires_grad=True)
    attend = AttentionInterface.get_interface
    module, results = nn.Module().eval(), []
    for shortest in (None, 1):
        with attention_patching.attention_chunked(shortest):
            function = ALL_ATTENTION_FUNCTIONS.get_interface("eager", modeling_bert.eager_attention_forward)
            results.append(function(module, query, key, value, None, scaling=0.3, dropout=0.5)[0])
    torch.testing.assert_close(*results)
    assert AttentionInterface.get_interface is attend


def test_positions_that_a_model_changes_in_place_are_made_again():
    model, seen = llama(), []

    def change(module, args, kwargs):
        seen.append(kwargs["position_ids"].clone())
        kwargs["position_ids"].zero_()

    with positions_made_once(model, True):
        hook = model.model.register_forward_pre_hook(change, with_kwargs=True)
        for _ in range(2):
            model(**batch())
        hook.remove()
    assert torch.equal(*seen)
    assert seen[0].tolist() == [list(range(LENGTH))]


def test_a_function_registered_in_a_callback_is_used_from_then_on(restored, trained, own):
    def register(**_):
        AttentionInterface.register("sdpa", own)

    given = {"model": llama(), "train_dataset": rows(), "callbacks": [callback(on_step_end=register)]}
    trained(given, max_steps=3, chunked_attention=True)
    assert len(own.masks) == 2 * 2
