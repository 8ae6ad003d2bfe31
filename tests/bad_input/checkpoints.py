"""Checkpoints that are damaged or of another run; tests/checkpoints has more damage of each file."""

import pickle

from .cases import TRAIN, TSV_FILES, Case
from .models import Touch, cut


def resume(name, says, make=lambda folder: None, words=()):
    """The second run into the folder `out`, whose checkpoint `make` has damaged.

    Without the manifest, which would catch every change before its file is looked at.
    """

    def change(folder):
        checkpoint = folder / "out/checkpoint-2"
        (checkpoint / "manifest.json").unlink()
        make(checkpoint)

    command = (*TRAIN, "--output_dir", "out", *words)
    return Case(f"checkpoints: {name}", command, says, TSV_FILES, change, ["model", "out"])


def link_to_nowhere(name):
    return lambda folder: ((folder / name).unlink(), (folder / name).symlink_to("gone"))


CHECKPOINTS = [
    *(
        resume(f"a link to nowhere for {name}", name, link_to_nowhere(name))
        for name in ("model.safetensors", "rng_state.pth")
    ),
    resume("half of optimizer.pt", ["optimizer.pt", "damaged"], lambda folder: cut(folder / "optimizer.pt")),
    resume(
        "code in scheduler.pt",
        ["scheduler.pt", "could run code"],
        lambda folder: (folder / "scheduler.pt").write_bytes(pickle.dumps(Touch())),
    ),
    resume("an optimizer of another kind", ["optimizer.pt", "does not belong to this run"], words=("--optim", "sgd")),
]
