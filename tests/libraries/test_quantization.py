"""Models that bitsandbytes loads in 4 and 8 bits train adapters, resume, evaluate and merge, on the CPU and on mps."""

import importlib.util
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from mps_trainer import Trainer
from tests.conftest import assert_same_weights, logged, refusal, weights
from tests.libraries.tiny import runs
from tests.tiny import tiny

missing = [name for name in ("bitsandbytes", "peft") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.extra,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}: pip install -e '.[quantization]'"),
]

NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
KINDS: dict[str, dict[str, Any]] = {
    "nf4": NF4,
    "nf4, double": {**NF4, "bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True},
}
STEPS = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "eval_strategy": "steps"}
STEPS |= {"eval_steps": 1, "save_strategy": "steps", "save_steps": 2}


@pytest.fixture(scope="module", autouse=True)
def as_on_a_mac():
    """Registers bitsandbytes' kernels for mps, as its import does on a Mac, and switches torch.compile off in them."""
    import bitsandbytes.backends.mps.ops  # noqa: F401

    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("llama")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 128}
    tiny("LlamaForCausalLM", **sizes).save_pretrained(place)
    return place


def load(folder: Path, settings: dict[str, Any] | None, **others: Any) -> Any:
    kind = None if settings is None else transformers.BitsAndBytesConfig(**settings)
    return transformers.LlamaForCausalLM.from_pretrained(folder, quantization_config=kind, **others)


def adapted(model: Any, **settings: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    given = {"r": 4, "lora_dropout": 0.1, "target_modules": "all-linear", **settings}
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **given))


@pytest.fixture
def trainer_of(make_args, tmp_path):
    def make(model: Any, name: str = "run", **settings: Any) -> Trainer:
        args = make_args(output_dir=str(tmp_path / name), **{**STEPS, **settings})
        return Trainer(model, args, train_dataset=runs(32, 12), eval_dataset=runs(4, 12))

    return make


def logits(model: Any) -> torch.Tensor:
    model.eval()
    ids = torch.tensor([runs(1, 12)[0]["input_ids"]], device=model.device)
    with torch.no_grad():
        return model(input_ids=ids).logits.float().cpu()


def adapter(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.every_device(same_draws_as_cpu=True)
@pytest.mark.parametrize("kind", KINDS)
def test_training_equals_dequantized_model_and_resumes_exactly(kind, folder, trainer_of, tmp_path, device):
    trainer = trainer_of(adapted(load(folder, KINDS[kind])))
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {device}
    trainer.train()
    plain = trainer_of(adapted(load(folder, KINDS[kind]).dequantize().float()), "plain")
    plain.train()
    # On mps, bitsandbytes rounds the activations to 8 bits too. On the CPU it dequantizes the weights in training, and
    # rounds the activations in evaluations alone.
    close = 2e-2 if (kind, device) == ("int8", "mps") else 1e-4
    for figure in ("loss", "grad_norm", "eval_loss"):
        loose = 1e-2 if kind == "int8" and figure == "eval_loss" else close
        assert logged(trainer, figure) == pytest.approx(logged(plain, figure), rel=max(close, loose)), figure
    assert logged(trainer, "loss")[-1] < logged(trainer, "loss")[0]

    again = trainer_of(adapted(load(folder, KINDS[kind])), "again")
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    last = "checkpoint-4"
    assert_same_weights(adapter(tmp_path / "run" / last), adapter(tmp_path / "again" / last))
    assert not (tmp_path / "run" / last / "model.safetensors").exists()


@pytest.mark.every_device
@pytest.mark.parametrize("kind", KINDS)
def test_adapter_is_merged_saved_and_loaded(kind, folder, trainer_of, tmp_path, device):
    from peft import PeftModel

    trainer = trainer_of(adapted(load(folder, KINDS[kind]), lora_dropout=0.0))
    trainer.train()
    trainer.evaluate()
    trained = logits(trainer.model)
    largest = trained.abs().max()
    merged = trainer.model.merge_and_unload()
    # The merged weights are rounded to 4 or 8 bits again.
    assert (logits(merged) - trained).abs().max() < (0.02 if kind == "int8" else 0.3) * largest
    merged.save_pretrained(tmp_path / "merged")
    # A CPU with bfloat16 instructions rounds the scales, now that there is no Trainer.
    loaded = load(tmp_path / "merged", None, device_map={"": device})
    assert (logits(loaded) - logits(merged)).abs().max() < 0.02 * largest

    # Merging into the weights as they were before rounds nothing.
    whole = PeftModel.from_pretrained(load(folder, None), tmp_path / "run" / "checkpoint-4").merge_and_unload()
    whole.save_pretrained(tmp_path / "whole")
    predicting = trainer_of(load(tmp_path / "whole", None), "predicting")
    difference = torch.from_numpy(predicting.predict(runs(1, 12)).predictions) - trained
    assert difference.abs().max() < 0.3 * largest


@pytest.mark.parametrize("kind", KINDS)
def test_model_without_adapters_is_refused_as_by_transformers(kind, folder, trainer_of):
    assert "attach trainable adapters" in refusal(trainer_of, load(folder, KINDS[kind]), kind=ValueError)


@pytest.mark.every_device
@pytest.mark.parametrize("kind", KINDS)
def test_common_settings_work_with_quantization(kind, folder, trainer_of, tmp_path, device):
    """These are k-bit preparation, bf16, gradient checkpointing, the best model, and weights on the device."""
    from peft import prepare_model_for_kbit_training

    settings = dict(KINDS[kind])
    if "4bit" in str(settings):
        settings["bnb_4bit_compute_dtype"] = torch.bfloat16
    model = load(folder, settings, dtype=torch.bfloat16, device_map={"": device})
    model = adapted(prepare_model_for_kbit_training(model, use_gradient_checkpointing=False))
    trainer = trainer_of(
        model, bf16=True, gradient_checkpointing=True, load_best_model_at_end=True, metric_for_best_model="loss",
        eval_steps=2, save_total_limit=1,
    )  # fmt: skip
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, abs=1e-6)
    saved = {name: tensor for name, tensor in weights(trainer.model).items() if "lora_" in name}
    loaded = {name.replace(".weight", ".default.weight"): tensor for name, tensor in adapter(best).items()}
    assert_same_weights(saved, loaded)
    assert logged(trainer, "loss")[-1] < logged(trainer, "loss")[0]
    assert all(map(math.isfinite, logged(trainer, "grad_norm")))


def with_a_head(folder: Path, place: Path, *, tied: bool) -> Path:
    """Saves the model with its head tied to the embeddings or not, and returns its folder."""
    config = json.loads((folder / "config.json").read_text())
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**config, "tie_word_embeddings": tied}))
    model.save_pretrained(place)
    return place


ALL_LAYERS = {"llm_int8_skip_modules": ["nothing"]}


@pytest.mark.every_device
@pytest.mark.parametrize("head", ["tied", "apart", "quantized"])
def test_chunked_loss_equals_plain_loss(head, folder, trainer_of, tmp_path, monkeypatch):
    """The logits of a quantized head are computed, because it has no weight for chunks."""
    monkeypatch.setattr("mps_trainer.model.patches.deferred_logits.CHUNK", 0)
    place = with_a_head(folder, tmp_path / "model", tied=head == "tied")
    losses = {}
    for chunked in (False, True):
        model = load(place, {**NF4, **ALL_LAYERS} if head == "quantized" else NF4)
        assert type(model.lm_head).__name__ == ("Linear4bit" if head == "quantized" else "Linear")
        model = adapted(model, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
        trainer = trainer_of(model, str(chunked), chunked_cross_entropy=chunked, eval_strategy="no")
        trainer.train()
        losses[chunked] = logged(trainer, "loss")
    assert losses[True] == pytest.approx(losses[False], rel=1e-5)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_tied_quantized_head_is_refused(kind, folder, trainer_of, tmp_path):
    model = load(with_a_head(folder, tmp_path / "model", tied=True), {**KINDS[kind], **ALL_LAYERS})
    said = refusal(trainer_of, adapted(model, target_modules=["q_proj"]), kind=ValueError)
    assert "llm_int8_skip_modules" in said


def test_8_bit_layers_warn_once_of_their_cast_and_take_bf16_full_eval(folder, trainer_of, mps, caplog, monkeypatch):
    monkeypatch.setattr("mps_trainer.model.quantized._told", set())
    trainer = trainer_of(adapted(load(folder, KINDS["int8"])), bf16_full_eval=True)
    with caplog.at_level(logging.WARNING, logger="bitsandbytes"):
        trainer.train()
    casts = [record for record in caplog.records if "will be cast" in record.getMessage()]
    assert len(casts) == 1
    assert math.isfinite(trainer.evaluate()["eval_loss"])


def test_weights_in_inference_layout_are_refused(folder, trainer_of):
    import bitsandbytes

    if not bitsandbytes.functional.has_avx512bf16():
        pytest.skip("this processor has no bfloat16 instructions (AVX512-BF16)")
    model = load(folder, NF4)
    logits(model)
    assert "Load the model again" in refusal(trainer_of, adapted(model), kind=ValueError)
