"""Checkpoints that are damaged or of another run; tests/checkpoints/test_tampered.py has more values of each file."""

import pickle

from .cases import TRAIN, TSV_FILES, Case
from .models import Touch, cut

STATE, OPTIMIZER, SCHEDULER, RNG = "trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"
WEIGHTS = "model.safetensors"
PICKLED = (OPTIMIZER, SCHEDULER, RNG)


def resume(name, says, make=lambda folder: None, words=(), listed=False):
    """The second run into the folder `out`, whose checkpoint `make` has damaged.

    Without the manifest, which would catch every change before its file is looked at, if not `listed`.
    """

    def change(folder):
        checkpoint = folder / "out/checkpoint-2"
        if not listed:
            (checkpoint / "manifest.json").unlink()
        make(checkpoint)

    return Case(
        f"checkpoints: {name}", (*TRAIN, *words, "--output_dir", "out"), says, TSV_FILES, change, ["model", "out"]
    )


def elsewhere(name, says, make):
    """A run into a new folder that goes on from that checkpoint."""
    case = resume(f"{name}, from elsewhere", says, make)
    command = (*case.command[:-1], "new", "--resume_from_checkpoint", "out/checkpoint-2")
    return Case(case.name, command, says, case.files, case.make, case.uses)


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def link_to_nowhere(name):
    return lambda folder: ((folder / name).unlink(), (folder / name).symlink_to("gone"))


def half(name):
    return lambda folder: cut(folder / name)


def _another_architecture(folder):
    from safetensors.torch import load_file, save_file

    weights = {f"roberta.{name}": tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


CHECKPOINTS = [
    *(resume(f"half of {name}", [name, "damaged"], half(name)) for name in (STATE, WEIGHTS, *PICKLED)),
    *(resume(f"code in {name}", [name, "could run code"], write(name, pickle.dumps(Touch()))) for name in PICKLED),
    *(resume(f"a link to nowhere for {name}", name, link_to_nowhere(name)) for name in (WEIGHTS, RNG)),
    resume("no weights", "has no model.safetensors", lambda folder: (folder / WEIGHTS).unlink()),
    elsewhere("an empty optimizer.pt", "optimizer.pt is damaged", write(OPTIMIZER, b"")),
    elsewhere("no state", "it has no trainer_state.json", lambda folder: (folder / STATE).unlink()),
    resume("half of listed weights", ["all are damaged", f"{WEIGHTS} has", "instead of"], half(WEIGHTS), listed=True),
    resume(
        "half of the weights of the one that is asked for",
        ["is damaged", "There is no good one beside it", "delete its manifest.json"],
        half(WEIGHTS),
        ("--resume_from_checkpoint", "out/checkpoint-2"),
        listed=True,
    ),
    resume("weights of another architecture", "belong to another model", _another_architecture),
    resume("an optimizer of another kind", [OPTIMIZER, "does not belong to this run"], words=("--optim", "sgd")),
]
