"""A step of a Llama takes fewer operators on mps, and learns what it learns with those of transformers."""

import contextlib
import copy
import pickle

import pytest
import torch
from transformers import masking_utils
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as interleaved
from transformers.models.llama import modeling_llama

from mps_trainer import Trainer
from mps_trainer.model.patches.norms import is_rms_norm, norms_in_few_kernels
from mps_trainer.model.patches.positions import DECODERS, positions_made_once
from mps_trainer.model.patches.rotary import _Signed, is_rotation, rotations_in_few_kernels
from mps_trainer.model.preparation import model_patched
from mps_trainer.simulator import SimulationCallback
from tests.tiny import tiny, with_lora

PATCHES = {"norms": norms_in_few_kernels, "rotary": rotations_in_few_kernels, "positions": positions_made_once}
ALIKE = (
    *("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Granite", "Olmo2", "Phi3", "SmolLM3", "Olmo3"),
    *("Mixtral", "Qwen2Moe", "Qwen3Moe"),
)


def make(name="Llama", **settings):
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, **settings}
    if "Moe" in name or name == "Mixtral":
        sizes |= {"num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
    model = tiny(f"{name}ForCausalLM", **sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


@contextlib.contextmanager
def all_patches(model):
    with contextlib.ExitStack() as stack:
        for patch in PATCHES.values():
            stack.enter_context(patch(model, True))
        yield


def loss_and_gradients(model, steps=1, **inputs):
    tokens = torch.arange(3, 43).reshape(2, 20)
    for _ in range(steps):
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False, **inputs).loss
        loss.backward()
    return loss.detach(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("mask", [None, torch.tensor([[1] * 20, [1] * 14 + [0] * 6])], ids=["", "padded"])
def test_losses_and_gradients_are_those_of_transformers(name, mask):
    model = make(name)
    assert type(model.model).__name__ in DECODERS
    assert len(ALIKE) == len(DECODERS)
    assert is_rms_norm(type(model.model.norm)) == (not name.startswith(("Gemma", "Olmo")))
    expected = loss_and_gradients(model, attention_mask=mask)
    with all_patches(model):
        found = loss_and_gradients(model, steps=2, attention_mask=mask)
    assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_loss_is_close(dtype):
    model = make()
    with torch.autocast("cpu", dtype=dtype):
        expected = loss_and_gradients(model)
        with all_patches(model):
            torch.testing.assert_close(loss_and_gradients(model), expected, rtol=2e-2, atol=2e-2)


def test_frequencies_that_follow_the_lengths_are_computed_each_time():
    ropes = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = make(rope_parameters=ropes, max_position_embeddings=8)
    expected = loss_and_gradients(model)
    with all_patches(model):
        assert "forward" not in vars(model.model.rotary_emb)
        assert_close(loss_and_gradients(model), expected)


@pytest.mark.parametrize("patch", PATCHES)
def test_each_leaves_nothing_behind(patch):
    model = make()
    search, rotation = masking_utils.find_packed_sequence_indices, modeling_llama.apply_rotary_pos_emb
    context = PATCHES[patch](model, True)
    context.__enter__()
    loss_and_gradients(model)
    with pytest.raises(KeyError):
        context.gen.throw(KeyError())
    assert not any("forward" in vars(module) for module in model.modules())
    assert masking_utils.find_packed_sequence_indices is search
    assert modeling_llama.apply_rotary_pos_emb is rotation
    assert not model.model._forward_pre_hooks


@pytest.mark.parametrize(("device", "compiles"), [("cpu", False), ("mps", True), ("mps", False)])
def test_they_apply_on_mps_where_nothing_is_compiled(device, compiles, make_args):
    model = make()
    rotation, search = modeling_llama.apply_rotary_pos_emb, masking_utils.find_packed_sequence_indices
    trainer = Trainer(model, make_args(padding_free=False))
    trainer.args.torch_compile = compiles
    with model_patched(trainer, torch.device(device)):
        plain = device == "cpu" or compiles
        assert ("forward" not in vars(model.model.norm)) is plain
        assert (modeling_llama.apply_rotary_pos_emb is rotation) is plain
        assert (masking_utils.find_packed_sequence_indices is search) is plain


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_a_copy_made_during_a_run_goes_on_as_before(copied):
    model = make()
    expected = loss_and_gradients(model)
    model.zero_grad()
    with all_patches(model):
        loss_and_gradients(model)
        other = copied(model)
        during = loss_and_gradients(other)
    assert type(other.model.norm) is modeling_llama.LlamaRMSNorm
    assert_close([during, loss_and_gradients(other)], [expected] * 2)


def test_transforms_of_functions_see_the_layers_of_transformers():
    model, tokens = make(), torch.arange(3, 13)[None]
    weights = {name: one.detach() for name, one in model.named_parameters()}

    def loss(weights):
        inputs = {"input_ids": tokens, "labels": tokens, "use_cache": False}
        return torch.func.functional_call(model, weights, (), inputs).loss

    with all_patches(model):
        gradients = torch.func.grad(loss)(weights)
        compiled = torch.compile(model, backend="eager")(input_ids=tokens, labels=tokens, use_cache=False).loss
    assert_close(compiled.detach(), loss(weights))
    loss_of_model = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss_of_model.backward()
    expected = {name: one.grad for name, one in model.named_parameters()}
    assert_close(gradients, expected)


def test_norms_and_rotations_that_differ_are_left_alone():
    class Mine(modeling_llama.LlamaRMSNorm):
        def forward(self, hidden_states):
            return super().forward(hidden_states) + 1

    Mine.__module__, Mine.__name__ = "transformers.models.mine", "MineRMSNorm"
    assert not is_rms_norm(Mine)
    assert is_rotation(modeling_llama.apply_rotary_pos_emb)
    assert not is_rotation(interleaved)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_norm_in_bfloat16_is_the_same_and_its_gradient_rounds_no_more(frozen):
    model = make().to(torch.bfloat16)
    norm, precise = model.model.norm, make().model.norm.double()
    norm.weight.requires_grad_(not frozen)
    precise.load_state_dict(norm.state_dict())
    rows = torch.randn(4, 32, dtype=torch.bfloat16, requires_grad=True)
    exact = rows.detach().double().requires_grad_()
    towards = torch.randn(4, 32, dtype=torch.bfloat16)
    expected = norm(rows)
    (wanted,) = torch.autograd.grad(expected, rows, towards)
    with norms_in_few_kernels(model, True):
        found = norm(rows)
        (gradient,) = torch.autograd.grad(found, rows, towards)
    assert torch.equal(found, expected)
    (of_exact,) = torch.autograd.grad(precise(exact), exact, towards.double())
    assert (gradient - of_exact).abs().max() <= 1.01 * (wanted - of_exact).abs().max()


def test_a_gradient_of_the_gradient_is_that_of_transformers():
    model, tokens = make(attn_implementation="eager"), torch.arange(3, 13)[None]

    def penalty():
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        grads = torch.autograd.grad(loss, [model.model.embed_tokens.weight], create_graph=True)
        weights = [model.model.norm.weight, model.model.layers[0].self_attn.q_proj.weight]
        return torch.autograd.grad(grads[0].pow(2).sum(), weights)

    expected = penalty()
    with all_patches(model):
        torch.testing.assert_close(penalty(), expected, rtol=1e-4, atol=1e-5)


def test_packed_sequences_stay_apart():
    model = make()
    packed = torch.cat((torch.arange(12), torch.arange(8))).repeat(2, 1)
    expected = loss_and_gradients(model, position_ids=packed)
    with all_patches(model):
        loss_and_gradients(model)
        found = loss_and_gradients(model, position_ids=packed)
        plain = loss_and_gradients(model)
    assert_close(found, expected)
    assert not torch.equal(found[0], plain[0])


@pytest.mark.parametrize(("lora", "most"), [(False, 228), (True, 312)])
def test_a_step_takes_few_operators_and_no_wait(mps, make_trainer, lora, most):
    model = make(hidden_size=64)
    model = with_lora(model, target_modules="all-linear") if lora else model
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 60, (32, 16))]
    settings = {"max_steps": 8, "per_device_train_batch_size": 4, "logging_steps": 100}
    figures = SimulationCallback(mps)
    make_trainer({"model": model, "train_dataset": rows, "callbacks": [figures]}, **settings).train()
    assert figures.steps[6].operators <= most
    assert figures.steps[6].blocking_reads == 0


def test_a_norm_without_gradients_is_one_operator(mps):
    model = make().to("mps").eval()
    words = torch.ones(1, 4, dtype=torch.long, device="mps")

    def operators() -> tuple[int, torch.Tensor]:
        mps.reset()
        with torch.no_grad():
            logits = model(words).logits
        return mps.report().operator_calls, logits

    plain, expected = operators()
    with norms_in_few_kernels(model, True):
        fused, found = operators()
    assert fused <= 0.75 * plain
    assert torch.allclose(found.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)


def test_a_norm_without_gradients_of_other_numbers_than_its_weight_is_that_of_transformers():
    norm = make().model.norm
    rows = torch.randn(2, 3, norm.weight.numel(), dtype=torch.bfloat16)
    with torch.no_grad():
        expected = norm(rows)
        with norms_in_few_kernels(norm, True):
            found = norm(rows)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_positions_of_inference_mode_are_not_kept_for_training():
    model, ids = make(), torch.arange(8).reshape(1, 8)
    with positions_made_once(model, True):
        with torch.inference_mode():
            model(ids)
        model(ids).logits.sum().backward()  # torch saves no tensor of inference mode for a backward pass


def test_sines_that_change_in_place_get_their_signs_again():
    signed, sin = _Signed(), torch.rand(1, 3, 8)
    first = signed(sin)
    assert signed(sin) is first
    sin.mul_(2)
    assert torch.equal(signed(sin), 2 * first)


def test_sines_of_inference_are_not_kept():
    signed, sin = _Signed(), torch.rand(1, 3, 8)
    with torch.inference_mode():
        during = signed(sin)
    assert during.is_inference()
    assert not signed(sin).is_inference()


def test_sines_that_a_hook_changes_in_place_are_made_again():
    model = make()
    model.model.rotary_emb.register_forward_hook(lambda _, args, tables: [each.mul_(1.5) for each in tables] and None)
    expected = loss_and_gradients(model)
    with all_patches(model):
        assert_close(loss_and_gradients(model, steps=2), expected)
