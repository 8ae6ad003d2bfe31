"""Makes Trainers of transformers and of this package with the same model, data and seed."""

import torch
import transformers
from torch import nn

import mps_trainer

from .conftest import Library


class Net(nn.Module):
    """A classifier with every kind of normalisation, under names that do and do not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.up = nn.Linear(8, 64)
        self.bn = nn.BatchNorm1d(64)
        self.attention = nn.Linear(64, 64)
        self.norm = nn.GroupNorm(4, 64)
        self.rms = nn.RMSNorm(64)
        self.final_norm = nn.LayerNorm(64)
        self.ln = nn.LayerNorm(64)
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.head = nn.Linear(64, 2)

    def forward(self, x, labels=None):
        hidden = self.norm(self.bn(torch.tanh(self.up(self.embed(x).mean(1)))))
        hidden = self.ln(self.final_norm(self.rms(self.frozen(self.attention(hidden)))))
        logits = self.head(hidden)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(count: int = 32, seed: int = 3) -> list[dict]:
    numbers = torch.randint(0, 16, (count, 5), generator=torch.Generator().manual_seed(seed))
    return [{"x": row, "labels": int(row.sum() % 2)} for row in numbers]


def make(package, folder, kind: type | None = None, **settings):
    """Returns a Trainer of `package`."""
    defaults = {
        **{"train_dataset": rows(), "eval_dataset": rows(8), "per_device_train_batch_size": 4, "max_steps": 5},
        **{"learning_rate": 1e-2, "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.98, "adam_epsilon": 1e-6},
    }
    if not settings.keys() & {"model", "model_init"}:
        torch.manual_seed(0)
        settings["model"] = Net()
    return Library(package, folder).trainer(kind=kind, **{**defaults, **settings})


def both(folder, kind=None, **how):
    """Returns a Trainer of each package, this one's first. `kind(package)` is the class, if given."""
    return [
        make(package, folder / package.__name__, kind=kind and kind(package), **how)
        for package in (mps_trainer, transformers)
    ]


def assert_same_weights(ours, theirs) -> None:
    """Asserts equality up to rounding: the norm to clip by is summed in another order."""
    torch.testing.assert_close(ours.model.state_dict(), theirs.model.state_dict())
