"""`trainer.accelerator` answers as Accelerate's own does in one process."""

from __future__ import annotations

import os

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from .conftest import assert_same_logs, bert_classifier, sentences

PROPERTIES = [
    "device", "num_processes", "process_index", "local_process_index", "is_main_process", "is_local_main_process",
    "is_last_process", "use_distributed", "multi_device", "mixed_precision", "split_batches", "dispatch_batches",
    "even_batches", "use_seedable_sampler", "non_blocking", "sync_gradients", "gradient_accumulation_steps",
    "optimizer_step_was_skipped", "torch_device_mesh",
]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"bf16": True}, {"accelerator_config": {"even_batches": False}}], ids=str)
def test_what_it_is(both, settings):
    def run(library):
        accelerator = library.trainer(bert_classifier(), **settings).accelerator
        kind = accelerator.distributed_type
        return {name: getattr(accelerator, name) for name in PROPERTIES}, kind == "NO", kind.value

    theirs, ours = both(run)
    assert ours == theirs


def nested():
    return {"a": torch.arange(3), "b": [torch.ones(2, 2), (torch.zeros(1),)]}


CALLS = {
    "gather": lambda a: a.gather(torch.arange(3)),
    "gather of several": lambda a: a.gather(nested()),
    "gather_for_metrics": lambda a: a.gather_for_metrics((torch.arange(3), torch.ones(2))),
    "gather of objects": lambda a: a.gather_for_metrics(["x", "y"], use_gather_object=True),
    "reduce of several": lambda a: a.reduce(nested(), reduction="sum", scale=2.0),
    "reduce": lambda a: a.reduce(torch.arange(3.0), reduction="mean"),
    "pad": lambda a: a.pad_across_processes(torch.ones(2, 3), dim=1, pad_index=-100),
    "wait": lambda a: a.wait_for_everyone(),
    "autocast": lambda a: str(autocast_dtype(a)),
    "accumulate": lambda a: entered(a.accumulate(nn.Linear(1, 1))),
    "no_sync": lambda a: entered(a.no_sync(nn.Linear(1, 1))),
    "main process first": lambda a: entered(a.main_process_first()),
    "state_dict": lambda a: sorted(a.get_state_dict(bert_classifier())),
    "unwrap": lambda a: type(a.unwrap_model(nn.DataParallel(nn.Linear(1, 1)))).__name__,
    "unwrap compiled": lambda a: type(a.unwrap_model(compiled(), keep_torch_compile=False)).__name__,
    "share": lambda a: shares(a),
    "free": lambda a: list(a.free_memory(1, 2)),
}


def shares(accelerator):
    found = []
    for inputs in (["x", "y", "z"], torch.arange(3), {"a": [1, 2]}):
        with accelerator.split_between_processes(inputs, apply_padding=True) as share:
            found.append(share)
    return found


def compiled():
    return torch.compile(nn.Linear(1, 1), backend="eager")


def entered(context):
    with context:
        return True


def autocast_dtype(accelerator):
    with accelerator.autocast():
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def same(one, two) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("settings", [{}, {"bf16": True}], ids=str)
def test_what_it_does(both, name, settings):
    theirs, ours = both(lambda library: CALLS[name](library.trainer(bert_classifier(), **settings).accelerator))
    assert same(ours, theirs)


def test_the_main_process_prints(both, capsys):
    def run(library):
        accelerator = library.trainer(bert_classifier()).accelerator
        capsys.readouterr()
        accelerator.print("here", end="!")
        accelerator.on_main_process(print)("and", "here")
        return capsys.readouterr().out

    assert both(run) == ("here!and here\n",) * 2


@pytest.mark.parametrize("seedable", [True, False])
def test_a_loader_that_is_prepared_has_the_same_order(both, seedable):
    def run(library):
        trainer = library.trainer(bert_classifier(), accelerator_config={"use_seedable_sampler": seedable}, seed=9)
        data = TensorDataset(torch.arange(12))
        loader = trainer.accelerator.prepare(DataLoader(data, batch_size=4, sampler=RandomSampler(data)))
        orders = []
        for epoch in range(2):
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(epoch)
            orders.append(torch.cat([batch[0] for batch in loader]).tolist())
        return orders, len(loader), loader.total_batch_size

    theirs, ours = both(run)
    assert ours == theirs


def test_a_loop_written_with_it(both):
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
                return accelerator.gather(loss.detach()).mean()

        trainer = library.trainer(bert_classifier(), kind=Own, trainer={"train_dataset": sentences()}, max_steps=3)
        trainer.train()
        return trainer.state.log_history

    theirs, ours = both(run)
    assert_same_logs(ours, theirs)


def test_gradients_are_unscaled_once_however_often_they_are_clipped(both):
    def run(library):
        class Clips(library.module.Trainer):
            def training_step(self, *args, **kwargs):
                loss = super().training_step(*args, **kwargs)
                self.accelerator.clip_grad_norm_(self.model.parameters(), 0.05)
                return loss

        trainer = library.trainer(bert_classifier(), kind=Clips, trainer={"train_dataset": sentences()}, max_steps=2)
        trainer.train()
        return [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]

    theirs, ours = both(run)
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_clipping_twice_in_float16_unscales_once(make_trainer):
    trainer = make_trainer(max_steps=1, fp16=True)
    step = trainer.training_step

    def clipped(*args):
        loss = step(*args)
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1e9)
        return loss

    trainer.training_step = clipped
    trainer.train()
    assert trainer.state.log_history[0]["grad_norm"] < 10  # the scale is 65536


def test_a_scaler_of_ones_own_is_used(make_trainer):
    trainer = make_trainer(max_steps=2, fp16=True)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    trainer.train()
    assert trainer.accelerator.scaler.get_scale() == 16.0


def test_saving(both, tmp_path):
    def run(library):
        accelerator = library.trainer(bert_classifier()).accelerator
        path = library.folder / "tensor.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        accelerator.save({"x": torch.ones(2)}, path)
        accelerator.save_model(bert_classifier(), library.folder / "saved")
        accelerator.log({"x": 1})
        assert (library.folder / "saved" / "model.safetensors").is_file()
        return torch.load(path, weights_only=True)["x"].tolist()

    assert both(run) == ([1.0, 1.0],) * 2


def test_it_is_the_accelerator_of_accelerate_made_when_it_is_asked_for(make_trainer):
    trainer = make_trainer(max_steps=1)
    trainer.train()
    assert "accelerator" not in vars(trainer)
    assert isinstance(trainer.accelerator, Accelerator)


@pytest.mark.every_device
def test_the_accelerator_is_on_the_trainer_s_device_and_sets_no_variable(make_trainer, device):
    before = dict(os.environ)
    assert make_trainer().accelerator.device.type == torch.device(device).type
    assert dict(os.environ) == before


def test_an_accelerator_of_other_arguments_does_not_decide(make_trainer):
    settings = [{}, {"bf16": True}, {}]
    assert [make_trainer(**each).accelerator.mixed_precision for each in settings] == ["no", "bf16", "no"]


def test_settings_of_loaders_are_kept_where_accelerate_keeps_them(both):
    names = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking")

    def run(library):
        accelerator = library.trainer(bert_classifier(), accelerator_config={"dispatch_batches": True}).accelerator
        accelerator.even_batches = False
        accelerator.dataloader_config.split_batches = True
        kept = accelerator.dataloader_config
        return [(getattr(accelerator, name), getattr(kept, name)) for name in names]

    theirs, ours = both(run)
    assert ours == theirs


def test_what_is_split_between_processes_leaves_the_arguments_alone(make_trainer):
    trainer = make_trainer()
    trainer.accelerator.even_batches = False
    assert trainer.args.accelerator_config.even_batches
