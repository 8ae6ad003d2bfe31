"""The figures of device and machine beside the loss."""

import json

import pytest
import torch
import transformers
from transformers import TrainerCallback

from mps_trainer import DeviceStatsMonitor
from tests.conftest import callback, logged
from tests.dropin.conftest import Library

HOST = {"process_rss_bytes", "memory_available_bytes", "swap_used_bytes", "swap_percent", "cpu_percent"}
DEVICE = {"cpu": set(), "mps": {"mps_allocated_bytes", "mps_driver_allocated_bytes", "mps_recommended_max_bytes"}}
ALWAYS = {"loss", "grad_norm", "learning_rate", "epoch", "step"}


@pytest.mark.every_device
def test_a_log_of_the_loss_has_figures_of_device_and_machine(make_trainer, device, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "epoch"}
    trainer = make_trainer({"callbacks": [DeviceStatsMonitor]}, max_steps=3, **settings)
    metrics = trainer.train().metrics | trainer.evaluate()
    assert not HOST & metrics.keys()
    assert not [entry for entry in trainer.state.log_history if "eval_loss" in entry and HOST & entry.keys()]
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    for entry in losses:
        assert set(entry) == ALWAYS | HOST | DEVICE[device]
        assert all(isinstance(value, (int, float)) for value in entry.values())
        assert entry["process_rss_bytes"] > 10 * 2**20
        assert 0 <= entry["cpu_percent"] <= 100
    if device == "mps":
        held = losses[-1]
        assert 0 < held["mps_allocated_bytes"] <= held["mps_driver_allocated_bytes"]
        assert held["mps_recommended_max_bytes"] == torch.mps.recommended_max_memory()
    saved = json.loads((tmp_path / "run" / "checkpoint-3" / "trainer_state.json").read_text())
    assert saved["log_history"][0].keys() == losses[0].keys()


def test_trackers_and_the_display_are_told_wherever_the_monitor_stands_among_the_callbacks(make_trainer, capfd):
    for late in (False, True):
        told = []
        tracker = callback(on_log=lambda logs, told=told, **_: told.append(dict(logs)))
        callbacks = [tracker] if late else [tracker, DeviceStatsMonitor()]
        trainer = make_trainer({"callbacks": callbacks}, max_steps=1)
        if late:
            trainer.add_callback(DeviceStatsMonitor)
        trainer.train()
        assert "process_rss_bytes" in told[0]
        assert "process_rss_bytes" in capfd.readouterr().out


def test_it_looks_once_for_each_log_and_reads_nothing_from_the_device(mps, make_trainer, monkeypatch):
    looks = []
    figures = DeviceStatsMonitor._figures
    monkeypatch.setattr(DeviceStatsMonitor, "_figures", lambda self, args: looks.append(1) or figures(self, args))

    def reads(**settings):
        trainer = make_trainer(settings, max_steps=12, logging_steps=4)
        before = mps.counters()["blocking_reads"]
        trainer.train()
        return mps.counters()["blocking_reads"] - before, logged(trainer, "loss")

    without = reads()
    assert looks == []
    assert reads(callbacks=[DeviceStatsMonitor()]) == without
    assert len(looks) == 4  # when the run begins, and three logs


def test_other_callbacks_keep_their_order(make_trainer):
    order = [TrainerCallback(), TrainerCallback(), TrainerCallback()]
    plain = [type(each) for each in make_trainer({"callbacks": order}).callback_handler.callbacks]
    trainer = make_trainer({"callbacks": [*order, DeviceStatsMonitor()]})
    first, *others = trainer.callback_handler.callbacks
    assert isinstance(first, DeviceStatsMonitor)
    assert [type(each) for each in others] == plain
    assert [each for each in others if type(each) is TrainerCallback] == order


def test_the_history_of_transformers_own_trainer_has_them_too(tmp_path):
    trainer = Library(transformers, tmp_path).trained(callbacks=[DeviceStatsMonitor()], max_steps=2)
    assert len(logged(trainer, "swap_percent")) == 2
