"""Models with PEFT adapters train, save, resume and go back to the best as in transformers."""

from __future__ import annotations

import shutil

import pytest
import torch

import mps_trainer

from ..conftest import weights as on_cpu
from .conftest import Library, assert_same_logs, bert_classifier, gpt2, sentences, texts

peft = pytest.importorskip("peft", reason="PEFT is not installed")

STEPS = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5, "learning_rate": 1e-2}


def lora(**settings):
    torch.manual_seed(3)
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["query", "value"], **settings
    )
    return peft.get_peft_model(bert_classifier(), config)


def trained(library, resume_from=None, model=None, data=None, **settings):
    data = data or {"train_dataset": sentences(), "eval_dataset": sentences(8, seed=1)}
    trainer = library.trainer(model or lora(), trainer=data, **{**STEPS, **settings})
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    return trainer


def test_adapters_train_and_are_saved_alike(both):
    def run(library):
        trainer = trained(library)
        trainer.evaluate()
        folder = library.folder / "checkpoint-2"
        return trainer.state.log_history, {path.name for path in folder.iterdir()}, trainer.label_names

    theirs, ours = both(run)
    assert_same_logs(ours[0], theirs[0])
    assert ours[1] == theirs[1] | {"loop_state.json", "manifest.json"}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= ours[1]
    assert "model.safetensors" not in ours[1]
    assert ours[2] == theirs[2]


def test_a_run_begun_in_one_goes_on_in_the_other(both, tmp_path):
    def whole(library):
        trainer = trained(library)
        shutil.copytree(library.folder / "checkpoint-2", tmp_path / f"from-{library.module.__name__}")
        return trainer.state.log_history, on_cpu(trainer.model)

    def changed_over(library):
        trainer = trained(library, tmp_path / ("from-transformers" if library.is_ours else "from-mps_trainer"))
        return trainer.state.log_history, on_cpu(trainer.model)

    (logs, weights), _ = both(whole)
    for went_on, its_weights in both(changed_over):
        assert_same_logs(went_on[:-1], logs[:-1], resumed=True)
        assert all(torch.allclose(its_weights[name], weights[name], atol=1e-6) for name in weights)


def test_the_best_adapters_come_back_at_the_end(both):
    def run(library):
        best = {
            "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True,
            "metric_for_best_model": "loss", "greater_is_better": True,
        }  # fmt: skip
        trainer = trained(library, **best)
        return trainer.state.best_global_step, on_cpu(trainer.model), trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours[2], theirs[2])
    assert ours[0] == theirs[0]
    assert all(torch.allclose(ours[1][name], theirs[1][name], atol=1e-6) for name in theirs[1])


def test_several_adapters_are_kept_in_folders_of_their_own(both):
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
        again = trained(library, folder, model=two())
        return files, on_cpu(trainer.model), on_cpu(again.model), again.model.active_adapter

    theirs, ours = both(run)
    assert ours[0] == theirs[0] | {"loop_state.json", "manifest.json"}
    assert "second/adapter_model.safetensors" in ours[0]
    assert ours[3] == theirs[3] == "second"
    for name in ours[1]:
        assert torch.allclose(ours[1][name], theirs[1][name], atol=1e-6)
        assert torch.equal(ours[1][name], ours[2][name]), name  # resumed, in every bit


def test_prompt_tuning_of_a_language_model(both):
    def run(library):
        torch.manual_seed(3)
        config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
        data = {"train_dataset": texts()}
        trainer = trained(library, model=peft.get_peft_model(gpt2(), config), data=data, label_names=["labels"])
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


@pytest.mark.every_device
def test_a_resumed_run_equals_one_that_was_never_interrupted(make_args, tmp_path, device):
    def run(folder, resume_from=None):
        torch.manual_seed(0)
        args = make_args(output_dir=str(folder), **STEPS)
        trainer = mps_trainer.Trainer(lora(), args, train_dataset=sentences())
        trainer.train(resume_from_checkpoint=resume_from)
        return on_cpu(trainer.model)

    whole = run(tmp_path / "whole")
    again = run(tmp_path / "again", str(tmp_path / "whole" / "checkpoint-2"))
    assert [name for name in whole if not torch.equal(whole[name], again[name])] == []


@pytest.mark.every_device
def test_adapters_in_bfloat16_are_resumed_as_they_were(make_args, tmp_path):
    """TRL makes those of quantized models so. PEFT puts others in float32 in their place, which no optimizer knows."""

    def run(folder, resume_from=None):
        args = make_args(**{**STEPS, "output_dir": str(tmp_path / folder)})
        torch.manual_seed(0)
        model = lora().to(torch.bfloat16)
        trainer = mps_trainer.Trainer(model, args, train_dataset=sentences())
        trainer.train(resume_from_checkpoint=resume_from)
        return on_cpu(trainer.model)

    whole, resumed = run("whole"), run("resumed", str(tmp_path / "whole" / "checkpoint-4"))
    assert {tensor.dtype for name, tensor in resumed.items() if "lora_" in name} == {torch.bfloat16}
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_checkpoint_of_adapters_needs_a_model_with_adapters(tmp_path):
    import mps_trainer

    library = Library(mps_trainer, tmp_path / "run")
    trained(library)
    with pytest.raises(ValueError, match=r"has PEFT adapters, and BertForSequenceClassification has none"):
        trained(library, tmp_path / "run" / "checkpoint-2", model=bert_classifier())


def test_adapters_of_another_shape_are_refused_in_one_line(tmp_path):
    import mps_trainer

    library = Library(mps_trainer, tmp_path / "run")
    trained(library)
    torch.manual_seed(3)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=5, target_modules=["query", "value"])
    model = peft.get_peft_model(bert_classifier(), config)
    with pytest.raises(ValueError, match="do not fit this model"):
        trained(library, tmp_path / "run" / "checkpoint-2", model=model)
