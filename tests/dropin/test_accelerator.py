"""`trainer.accelerator` is Accelerate's own, with the settings and the behaviour it has in transformers."""

import os

import pytest
import torch
from accelerate import Accelerator

PROPERTIES = [
    "device", "num_processes", "process_index", "local_process_index", "is_main_process", "is_local_main_process",
    "is_last_process", "use_distributed", "multi_device", "mixed_precision", "split_batches", "dispatch_batches",
    "even_batches", "use_seedable_sampler", "non_blocking", "sync_gradients", "gradient_accumulation_steps",
    "optimizer_step_was_skipped", "torch_device_mesh",
]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"bf16": True}, {"accelerator_config": {"even_batches": False}}], ids=str)
def test_accelerator_has_properties_of_transformers(assert_same_runs, settings):
    def run(library):
        accelerator = library.trainer(**settings).accelerator
        assert isinstance(accelerator, Accelerator)
        kind = accelerator.distributed_type
        return {name: getattr(accelerator, name) for name in PROPERTIES}, kind == "NO", kind.value

    assert_same_runs(run)


def test_step_that_uses_accelerator_gives_same_logs(assert_same_runs):
    def run(library):
        class Own(library.module.Trainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                model.train()
                accelerator, inputs = self.accelerator, self._prepare_inputs(inputs)
                with accelerator.autocast():
                    loss = self.accelerator.unwrap_model(model)(**inputs).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_value_(model.parameters(), 0.01)
                    accelerator.clip_grad_norm_(model.parameters(), 0.05)
                return accelerator.gather(loss.detach()).mean()

        return library.trained(kind=Own, max_steps=3)

    assert_same_runs(run)


def test_gradients_in_float16_are_unscaled_once_when_clipped_twice(make_trainer):
    trainer = make_trainer(max_steps=1, fp16=True)
    step = trainer.training_step

    def clipped(*args):
        loss = step(*args)
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1e9)
        return loss

    trainer.training_step = clipped
    trainer.train()
    assert trainer.state.log_history[0]["grad_norm"] < 10  # the scale is 65536


def test_scaler_that_is_set_is_used(make_trainer):
    trainer = make_trainer(max_steps=2, fp16=True)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    trainer.train()
    assert trainer.accelerator.scaler.get_scale() == 16.0


@pytest.mark.every_device
def test_accelerator_is_made_on_request_on_trainers_device_and_sets_no_variable(trained, device):
    before = dict(os.environ)
    trainer = trained(max_steps=1)
    assert "accelerator" not in vars(trainer)
    assert trainer.accelerator.device.type == torch.device(device).type
    assert dict(os.environ) == before


def test_accelerator_has_precision_of_its_own_arguments_and_leaves_them_alone(make_trainer):
    settings = [{}, {"bf16": True}, {}]
    assert [make_trainer(**each).accelerator.mixed_precision for each in settings] == ["no", "bf16", "no"]
    trainer = make_trainer()
    trainer.accelerator.even_batches = False
    assert trainer.args.accelerator_config.even_batches
