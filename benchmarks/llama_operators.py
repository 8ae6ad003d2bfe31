"""The operators of a step of a Llama of two layers on the simulated mps device, and its loss after training."""

from __future__ import annotations

from typing import Any


def measure(peer: str, way: str, steps: int, folder: str) -> dict[str, Any]:
    """Trains on the simulated device. Without one, the figures are left out."""
    from mps_trainer.simulator import SimulatorUnavailableError, simulated_mps

    try:
        with simulated_mps() as device:
            return _measure_on(device, peer, way, steps, folder)
    except SimulatorUnavailableError:
        return {"learned": {}}


def _measure_on(device: Any, peer: str, way: str, steps: int, folder: str) -> dict[str, Any]:
    from .simulated import _counted
    from .tasks import small_llama

    model, rows = small_llama(steps, lora=way == "lora")
    losses: list[float] = []

    def train(model: Any, rows: Any) -> None:
        import transformers

        import mps_trainer

        library: Any = mps_trainer if peer == "ours" else transformers
        settings = {"per_device_train_batch_size": 4, "max_steps": steps, "learning_rate": 1e-3}
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": steps}
        arguments = library.TrainingArguments(folder, **settings, **quiet)
        trainer = library.Trainer(model, arguments, train_dataset=rows)
        losses.append(trainer.train().training_loss)

    _, counts = _counted(device, train, model, rows)
    return {
        f"{way}_operators": counts["operators"],
        f"{way}_blocking_reads": counts["blocking_reads"],
        "learned": {f"{way} loss of {steps} steps": losses[0]},
    }
