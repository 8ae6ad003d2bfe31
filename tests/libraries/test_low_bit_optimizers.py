"""torchao's AdamW in 8 and 4 bits trains uncompiled on the CPU and mps, resumes, and saves memory."""

import gc
import importlib.util
import json
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import nn

from mps_trainer import Trainer
from mps_trainer.fit import estimate
from mps_trainer.simulator import SimulationCallback
from mps_trainer.tools.fit.remedies import remedies_for
from mps_trainer.tools.fit.step import as_on_mps, largest_batch, measure_step
from tests.conftest import assert_same_weights, logged, refusal, weights
from tests.libraries.tiny import runs
from tests.tiny import tiny

pytestmark = [
    pytest.mark.integration,
    pytest.mark.extra,
    pytest.mark.skipif(
        importlib.util.find_spec("torchao") is None, reason="not installed: torchao: pip install -e '.[optimizers]'"
    ),
]

KINDS = {"adamw_torch_8bit": "AdamW8bit", "adamw_torch_4bit": "AdamW4bit"}
STEPS = {"max_steps": 12, "per_device_train_batch_size": 4, "learning_rate": 3e-3, "weight_decay": 0.1}


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    """Lets torch.compile fail, as it does where there is no compiler."""
    monkeypatch.setattr(torch, "compile", mock.Mock(side_effect=AssertionError("the step was compiled")))


SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 512}


def llama(dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    return tiny("LlamaForCausalLM", **{**SIZES, **settings}).to(dtype)


@pytest.fixture
def trainer_of(make_args, tmp_path):
    def make(optim: str = "adamw_torch_8bit", name: str = "run", model: Any = None, **settings: Any) -> Trainer:
        args = make_args(output_dir=str(tmp_path / name), optim=optim, **{**STEPS, **settings})
        return Trainer(llama() if model is None else model, args, train_dataset=runs(64, 16))

    return make


def model_and_gradients(dtype: torch.dtype, channels_last: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Linear(64, 300), nn.Linear(5, 5)).to(dtype)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS.values())
def test_step_in_parts_equals_torchaos(kind, dtype, channels_last, monkeypatch):
    import torchao.optim

    from mps_trainer.optim import low_bit

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(low_bit, "_PART", 1024)
    models = [model_and_gradients(dtype, channels_last) for _ in range(2)]
    kinds = getattr(torchao.optim, kind), getattr(low_bit, kind)
    optimizers = [kind(model.parameters(), lr=1e-2) for kind, model in zip(kinds, models, strict=True)]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.step()
    assert_same_weights(*(weights(model) for model in models))
    assert type(optimizers[1].state[models[1][1].weight]["exp_avg"]).__name__.startswith("OptimState")


@pytest.mark.every_device(same_draws_as_cpu=True)
@pytest.mark.parametrize(("optim", "close"), [("adamw_torch_8bit", 0.01), ("adamw_torch_4bit", 0.05)])
def test_losses_equal_those_of_adamw(optim, close, trainer_of, device):
    trainer, plain = trainer_of(optim), trainer_of("adamw_torch", "plain")
    for each in (trainer, plain):
        each.train()
    assert type(trainer.optimizer).__name__ == KINDS[optim]
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {device}
    assert logged(trainer, "learning_rate") == pytest.approx(logged(plain, "learning_rate"))
    assert logged(trainer, "loss") == pytest.approx(logged(plain, "loss"), rel=close)
    assert logged(trainer, "loss")[-1] < 0.85 * logged(trainer, "loss")[0]


@pytest.mark.every_device
@pytest.mark.parametrize(
    ("optim", "settings"),
    [
        ("adamw_torch_8bit", {"gradient_accumulation_steps": 2}),
        ("adamw_torch_8bit", {"save_async": False, "lr_scheduler_type": "cosine"}),
        ("adamw_torch_8bit", {"optim_args": "bf16_stochastic_round=true"}),
        ("adamw_torch_4bit", {}),
    ],
    ids=str,
)
def test_resumed_run_equals_one_that_was_not_interrupted(optim, settings, trainer_of, tmp_path):
    dtype = torch.bfloat16 if "optim_args" in settings else torch.float32
    saving = {**settings, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    trainer = trainer_of(optim, model=llama(dtype), **saving)
    trainer.train()
    again = trainer_of(optim, "again", model=llama(dtype), **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    assert_same_weights(weights(trainer.model), weights(again.model))
    for parameter, other in zip(trainer.model.parameters(), again.model.parameters(), strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            first, second = (o.state[p][name] for o, p in ((trainer.optimizer, parameter), (again.optimizer, other)))
            assert type(first) is type(second)
            assert torch.equal(getattr(first, "codes", first), getattr(second, "codes", second))
    assert logged(trainer, "loss")[-3:] == logged(again, "loss")[-3:]


def test_checkpoints_resume_in_transformers_and_back(trainer_of, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    settings = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "use_cpu": True}
    ours = trainer_of(**settings)
    ours.train()
    quiet = {"optim": "adamw_torch_8bit", "logging_steps": 1, "disable_tqdm": True, "report_to": "none"}
    args = transformers.TrainingArguments(str(tmp_path / "theirs"), **{**STEPS, **settings, **quiet})
    other = transformers.Trainer(llama(), args, train_dataset=runs(64, 16))
    other.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    back = trainer_of(name="back", **settings)
    back.train(resume_from_checkpoint=str(tmp_path / "theirs" / "checkpoint-6"))
    torch.testing.assert_close(weights(ours.model), weights(other.model), rtol=1e-4, atol=1e-5)
    assert_same_weights(weights(other.model), weights(back.model))


def test_state_of_another_optimizer_or_format_is_refused(trainer_of, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    for optim in ("adamw_torch_8bit", "adamw_torch_4bit", "adamw_torch"):
        trainer_of(optim, optim, **saving).train()
    for optim, saved in (
        ("adamw_torch_8bit", "adamw_torch_4bit"),
        ("adamw_torch_8bit", "adamw_torch"),
        ("adamw_torch", "adamw_torch_8bit"),
    ):
        trainer = trainer_of(optim, "refused", **{**saving, "max_steps": 4})
        said = refusal(trainer.train, resume_from_checkpoint=str(tmp_path / saved / "checkpoint-2"))
        assert "does not belong to this run" in said


def test_a_codebook_of_another_size_is_refused(trainer_of, tmp_path):
    """Codes would look up values beyond its end, which mps does not check."""
    trainer_of(save_strategy="steps", save_steps=2, max_steps=2).train()
    path = tmp_path / "run" / "checkpoint-2" / "optimizer.pt"
    saved = torch.load(path, weights_only=True)
    for state in saved["state"].values():
        if hasattr(state["exp_avg"], "codes"):
            state["exp_avg"].qmap = state["exp_avg"].qmap[:4].clone()
    torch.save(saved, path)
    (path.parent / "manifest.json").unlink()
    again = trainer_of(name="again", max_steps=4)
    assert "exp_avg of a parameter has another" in refusal(again.train, resume_from_checkpoint=str(path.parent))


def test_step_waits_once_on_mps_and_falls_back_nowhere(mps, trainer_of):
    trainer = trainer_of(gradient_accumulation_steps=2, max_grad_norm=0.1)
    steps = SimulationCallback(mps)
    trainer.add_callback(steps)
    trainer.train()
    parameters = len(list(trainer.model.parameters()))
    assert mps.report().fell_back == ()
    assert all(step.blocking_reads <= 1 for step in steps.steps[1:])
    assert steps.median("operators") < 100 * parameters + 1500
    assert all(norm > 0.1 for norm in logged(trainer, "grad_norm"))


LARGE = {"intermediate_size": 256, "vocab_size": 4096}


def test_fit_computes_the_memory_of_a_run(mps, trainer_of, monkeypatch):
    monkeypatch.setattr("mps_trainer.optim.low_bit._PART", 2**14)
    gc.collect()
    before = mps.counters()["bytes_live"]  # other tests left them
    trainer = trainer_of(model=llama(**LARGE), max_steps=3)
    with as_on_mps():
        found = measure_step(trainer, largest_batch(trainer, 4)).bytes_peak
    mps.reset()
    trainer.train()
    assert found == pytest.approx(mps.report().bytes_peak - before, rel=0.1)
    with as_on_mps():  # also once there is a state
        assert measure_step(trainer, largest_batch(trainer, 4)).bytes_peak == pytest.approx(found, rel=0.02)


def test_fit_offers_8_bits_where_adamw_trains_all_weights(trainer_of, monkeypatch):
    text = "optim='adamw_torch_8bit'"
    monkeypatch.setattr("mps_trainer.optim.low_bit._PART", 2**14)
    report = estimate(trainer_of("adamw_torch_fused", model=llama(**LARGE)), batches=1)
    with_8_bits = next(each for each in report.remedies if each.text == text)
    # 2 of 8 bytes for each weight are left, and AdamW joins small gradients of 4 bytes when it clips them
    assert 6 < (report.bytes_peak - with_8_bits.bytes_peak) / report.trainable < 6 + 4
    for optim in ("adamw_torch_8bit", "sgd", "adafactor"):
        assert text not in [each.text for each in remedies_for(trainer_of(optim), 4)]


@pytest.mark.every_device
def test_optimizer_of_the_class_is_uncompiled_too(trainer_of, make_args, device):
    import torchao.optim

    trainer = Trainer(
        llama(),
        make_args(max_steps=2),
        train_dataset=runs(16, 16),
        optimizer_cls_and_kwargs=(torchao.optim.AdamW8bit, {"lr": 1e-3}),
    )
    trainer.train()
    assert isinstance(trainer.optimizer, torchao.optim.AdamW8bit)
    assert json.dumps(logged(trainer, "loss"))
