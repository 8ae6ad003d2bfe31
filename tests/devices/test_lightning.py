"""MPSAccelerator handed to Lightning, where that is installed: it comes with the extra `benchmarks` only."""

import pytest
import torch

from mps_trainer import MPSAccelerator
from tests.conftest import refusal

lightning = pytest.importorskip("lightning")


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        self.seen = []

    def training_step(self, batch, index):
        rows, labels = batch
        logits = self.head(rows)
        self.seen.append((str(logits.device), logits.dtype))
        return torch.nn.functional.cross_entropy(logits, labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def loader():
    rows = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, (rows.sum(1) > 0).long()), 4)


def make(**settings):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return lightning.Trainer(accelerator=MPSAccelerator(), max_epochs=1, **{**quiet, **settings})


@pytest.mark.parametrize("devices", ["auto", 1, [0], -1], ids=str)
@pytest.mark.parametrize("is_mixed", [False, True])
def test_lightning_trains_on_the_device(mps, devices, is_mixed):
    model, plugin = Line(), lightning.pytorch.plugins.MixedPrecision("bf16-mixed", "mps")
    trainer = make(devices=devices, plugins=plugin if is_mixed else None)
    trainer.fit(model, loader())
    assert model.seen == [("mps:0", torch.bfloat16 if is_mixed else torch.float32)] * 4
    assert trainer.global_step == 4
    assert isinstance(trainer.accelerator, MPSAccelerator)


def test_fabric_takes_it_too_and_two_devices_are_refused_in_this_packages_words(mps):
    fabric = lightning.Fabric(accelerator=MPSAccelerator(), devices=1)
    assert fabric.device == torch.device("mps", 0)
    assert "devices=2 was requested with accelerator='mps'" in refusal(make, devices=2)
