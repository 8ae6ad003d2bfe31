"""Checks that a run resumed from a checkpoint gives the results of an uninterrupted run."""

from __future__ import annotations

import shutil
from typing import Any

import safetensors.torch
import torch

from ...trainer import Trainer
from .lab import Lab, losses, tiny_bert
from .numbers import TOLERANCES
from .results import CheckFailed, CheckSkipped

HALF, WHOLE = 4, 8  # steps


def resumed_on_the_device(lab: Lab) -> tuple[str, dict[str, Any]]:
    """Compares a resumed run on the device with an uninterrupted run."""
    if lab.device.type == "cpu":
        raise CheckSkipped("the device is the CPU, which the previous check covers")
    return resumed(lab, lab.device.type)


def resumed(lab: Lab, device: str) -> tuple[str, dict[str, Any]]:
    """Compares a resumed run with an uninterrupted run, including the random numbers of dropout.

    On the CPU they agree in every bit. A GPU may add in another order each time, so its losses agree within that.
    The weights in the checkpoint equal the model's in every bit, on any device.
    """
    exactly = device == "cpu"
    folder = lab.folder / f"resumed-{device}"
    settings: dict[str, Any] = {"output_dir": str(folder), "max_steps": WHOLE}
    settings.update(save_strategy="steps", save_steps=HALF)
    whole = lab.train(device, tiny_bert(dropout=0.1), **settings)
    expected, weights = losses(whole), _weights(whole)
    written = safetensors.torch.load_file(folder / f"checkpoint-{WHOLE}" / "model.safetensors")
    wrong = [name for name, value in written.items() if not torch.equal(value, weights[name])]
    if wrong or not written:
        raise CheckFailed(
            f"{len(wrong)} of {len(written)} weights in the checkpoint differ from the model's, {wrong[:1]} for "
            "example"
        )
    resumed = lab.train(device, tiny_bert(dropout=0.1), resume=str(folder / f"checkpoint-{HALF}"), **settings)
    found, again = losses(resumed), _weights(resumed)
    shutil.rmtree(folder)
    differing = [name for name in weights if not torch.equal(weights[name], again[name])]
    differences = [abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True)]
    difference = float(torch.tensor(differences, dtype=torch.float64).max())  # unlike Python's, torch's max keeps nan
    figures = {
        "losses": found,
        "uninterrupted_losses": expected,
        "largest_difference": difference,
        "differing_parameters": len(differing),
        "parameters": len(weights),
    }
    tolerance = 0.0 if exactly else TOLERANCES["fp32"].relative
    if not difference <= tolerance or (exactly and differing):
        raise CheckFailed(
            f"the run resumed from step {HALF} differs from the uninterrupted run: its losses differ by "
            f"{difference:.1e}, and {len(differing)} of {len(weights)} weights at step {WHOLE} differ",
            **figures,
        )
    if not differing and not difference:
        return f"bitwise equal to the uninterrupted run: {len(weights)} weights and the losses", figures
    return (
        f"losses differ by {difference:.1e} of {tolerance:.0e} allowed, {len(differing)} of {len(weights)} weights "
        "in some bit: a GPU may sum in another order each time",
        figures,
    )


def _weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in trainer.model.state_dict().items()}
