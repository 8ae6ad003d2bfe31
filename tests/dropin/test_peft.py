"""Models with PEFT adapters train, save, resume and load the best adapters as in transformers."""

import re

import pytest
import torch
import transformers

import mps_trainer
from mps_trainer.devices.facts import parse_version

from ..conftest import assert_same_weights, refusal
from ..conftest import weights as on_cpu
from .conftest import Library, assert_close_weights, assert_same, bert_classifier, gpt2, sentences, texts
from .test_checkpoints import assert_resumes_in_the_other

peft = pytest.importorskip("peft", reason="PEFT is not installed")

STEPS = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5, "learning_rate": 1e-2}


def lora(r=2):
    torch.manual_seed(3)
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=r, lora_alpha=4, lora_dropout=0.1, target_modules=["query", "value"]
    )
    return peft.get_peft_model(bert_classifier(), config)


def trained(library, resume=None, model=None, **settings):
    return library.trained(model or lora(), resume=resume, **{**STEPS, **settings})


def test_adapters_have_same_logs_and_files(both):
    def run(library):
        trainer = trained(library, evaluate=True)
        return trainer, {path.name for path in (library.folder / "checkpoint-2").iterdir()}

    (their_trainer, their_files), (our_trainer, our_files) = both(run)
    assert_same(our_trainer, their_trainer)
    assert our_files == their_files | {"loop_state.json", "manifest.json"}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= our_files
    assert "model.safetensors" not in our_files
    assert our_trainer.label_names == their_trainer.label_names


def test_run_begun_in_one_library_resumes_in_the_other(both, tmp_path):
    assert_resumes_in_the_other(both, tmp_path, model=lora, learning_rate=1e-2)


def test_best_adapters_are_loaded_at_the_end(assert_same_runs):
    best = {
        "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True,
        "metric_for_best_model": "loss", "greater_is_better": True,
    }  # fmt: skip

    def run(library):
        trainer = trained(library, **best)
        return trainer, trainer.state.best_global_step, trainer.model.state_dict()

    assert_same_runs(run)


def test_several_adapters_have_folders_of_their_own(both):
    def run(library):
        def two():
            model = lora()
            torch.manual_seed(4)
            model.add_adapter("second", peft.LoraConfig(task_type="SEQ_CLS", r=3, target_modules=["key"]))
            model.set_adapter("second")
            return model

        trainer = trained(library, model=two())
        folder = library.folder / "checkpoint-2"
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        return files, trainer, trained(library, folder, model=two())

    (their_files, theirs, _), (our_files, ours, resumed) = both(run)
    assert our_files == their_files | {"loop_state.json", "manifest.json"}
    assert "second/adapter_model.safetensors" in our_files
    assert resumed.model.active_adapter == "second"
    assert_close_weights(ours, theirs)
    assert_same_weights(on_cpu(ours.model), on_cpu(resumed.model))


@pytest.mark.parametrize("active", ["default", "second"])
def test_an_adapter_at_the_top_level_resumes_beside_others(both, active):
    """PEFT saves the adapter "default" in the checkpoint itself. transformers before 5.23 does not load it there."""

    def two(change=0.0):
        model = lora()
        torch.manual_seed(4)
        model.add_adapter("second", peft.LoraConfig(task_type="SEQ_CLS", r=3, target_modules=["key"]))
        model.set_adapter(active)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name:
                    weight.add_(change)
        return model

    def run(library):
        whole = trained(library, model=two())
        assert (library.folder / "checkpoint-2" / "adapter_model.safetensors").is_file()
        return on_cpu(whole.model), on_cpu(trained(library, library.folder / "checkpoint-2", model=two(0.5)).model)

    (their_whole, their_resumed), (our_whole, our_resumed) = both(run)
    assert_same_weights(our_whole, our_resumed)
    if parse_version(transformers.__version__) >= (5, 23):
        assert_same_weights(their_whole, their_resumed)
        torch.testing.assert_close(our_resumed, their_resumed)


def test_prompt_tuning_has_same_logs(assert_same_runs):
    def run(library):
        torch.manual_seed(3)
        model = peft.get_peft_model(gpt2(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
        return trained(library, model=model, train_dataset=texts(), label_names=["labels"])

    assert_same_runs(run)


@pytest.mark.every_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumed_adapters_equal_those_of_uninterrupted_run(make_args, tmp_path, device, dtype):
    """TRL makes the adapters of quantized models in bfloat16. PEFT would load them in float32."""

    def run(folder, resume=None):
        torch.manual_seed(0)
        args = make_args(**STEPS, output_dir=str(tmp_path / folder))
        trainer = mps_trainer.Trainer(lora().to(dtype), args, train_dataset=sentences())
        trainer.train(resume_from_checkpoint=resume)
        return on_cpu(trainer.model)

    whole, resumed = run("whole"), run("resumed", str(tmp_path / "whole" / "checkpoint-2"))
    assert {tensor.dtype for name, tensor in resumed.items() if "lora_" in name} == {dtype}
    assert_same_weights(whole, resumed)


@pytest.mark.parametrize(
    ("rank", "reason"), [(None, "has PEFT adapters"), (5, "do not fit this model: .*size mismatch")]
)
def test_checkpoint_of_other_adapters_is_refused(tmp_path, rank, reason):
    library = Library(mps_trainer, tmp_path / "run")
    trained(library)
    model = bert_classifier() if rank is None else lora(r=rank)
    assert re.search(reason, refusal(trained, library, tmp_path / "run" / "checkpoint-2", model=model))


@pytest.mark.every_device
def test_adapter_that_transformers_added_resumes_and_its_best_is_loaded(make_args, tmp_path, device):
    """transformers' Trainer reads no adapter of a model without a PeftModel around it."""

    def run(folder, resume=None, **settings):
        model = gpt2()
        torch.manual_seed(3)
        model.add_adapter(peft.LoraConfig(r=2, modules_to_save=["lm_head"], lora_dropout=0.1), "own")
        settings = {**STEPS, "max_steps": 4, "lr_scheduler_type": "constant", **settings}
        args = make_args(**settings, output_dir=str(tmp_path / folder))
        trainer = mps_trainer.Trainer(model, args, train_dataset=texts(), eval_dataset=texts())
        trainer.train(resume_from_checkpoint=resume)
        return on_cpu(trainer.model)

    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 2}
    first = str(tmp_path / "whole" / "checkpoint-2")
    whole = run("whole")
    assert_same_weights(whole, run("resumed", first))
    assert_same_weights(run("short", max_steps=2), run("best", greater_is_better=True, **best))
    model = gpt2()
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["c_proj"]), "own")
    trainer = mps_trainer.Trainer(model, make_args(), train_dataset=texts())
    assert re.search("do not fit this model: .*names differ", refusal(trainer.train, resume_from_checkpoint=first))
