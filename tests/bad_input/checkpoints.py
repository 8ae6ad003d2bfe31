"""Checkpoints: each file damaged, of another run, or of another kind."""

import functools
import json
import pickle

from .cases import TRAIN, TSV_FILES, Case
from .models import Touch, cut, edit

STATE, OPTIMIZER, SCHEDULER, RNG = "trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"
LOOP = "loop_state.json"
WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
PICKLED = (OPTIMIZER, SCHEDULER, RNG)


def resume(name, says, make, *words, listed=False):
    """The second run into the folder `out`, whose checkpoint `make` has damaged.

    Without the manifest, which would catch every change before its file is looked at, if not `listed`.
    """

    def change(folder):
        checkpoint = folder / "out/checkpoint-2"
        if not listed:
            (checkpoint / MANIFEST).unlink()
        make(checkpoint)

    return Case(
        f"checkpoints: {name}", (*TRAIN, *words, "--output_dir", "out"), says, TSV_FILES, change, ["model", "out"]
    )


def elsewhere(name, says, make, *words):
    """A run into a new folder that goes on from that checkpoint."""
    case = resume(f"{name}, from elsewhere", says, make, *words)
    command = (*case.command[:-1], "new", "--resume_from_checkpoint", "out/checkpoint-2")
    return Case(case.name, command, says, case.files, case.make, case.uses)


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def state(name, says, **values):
    return resume(f"a state with {name}", [STATE, says], lambda folder: edit(folder / STATE, **values))


def tensors(file, change):
    """Changes what torch.save wrote to `file`."""

    def make(folder):
        import torch

        held = torch.load(folder / file, weights_only=False)
        result = change(held)
        torch.save(held if result is None else result, folder / file)

    return make


def _position(change):
    """Changes the position of the loop."""

    def make(folder):
        processes = json.loads((folder / LOOP).read_text())["processes"]
        change(processes[0])
        edit(folder / LOOP, processes=processes)

    return make


def _position_of_0_1(change):
    """Puts the changed position where version 0.1 has it, among the generators."""

    def make(folder):
        [position] = json.loads((folder / LOOP).read_text())["processes"]
        (folder / LOOP).unlink()
        tensors(RNG, _put("loop", value=change(position)))(folder)

    return make


def swapped(one, other):
    def make(folder):
        first = (folder / one).read_bytes()
        (folder / one).write_bytes((folder / other).read_bytes())
        (folder / other).write_bytes(first)

    return make


def link_to_nowhere(name):
    return lambda folder: ((folder / name).unlink(), (folder / name).symlink_to("gone"))


def _wider(folder):
    """The weights of a wider model of the same architecture."""
    from .conftest import make_model

    make_model(folder / "other", hidden_size=32)
    (folder / WEIGHTS).write_bytes((folder / "other" / WEIGHTS).read_bytes())


def _another_architecture(folder):
    from safetensors.torch import load_file, save_file

    weights = {f"roberta.{name}": tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def _sgd(folder):
    import torch

    layers = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    torch.save(torch.optim.SGD([{"params": [layer]} for layer in layers], lr=0.1).state_dict(), folder / OPTIMIZER)


def _shapes(held):
    for each in held["state"].values():
        each["exp_avg"] = each["exp_avg"].flatten()[:1].clone()


def _without_momentum(held):
    for each in held["state"].values():
        del each["exp_avg"]


def _put(*path, value):
    """Puts `value` where the keys in `path` lead."""

    def change(held):
        *way, last = path
        functools.reduce(lambda inner, key: inner[key], way, held)[last] = value

    return change


def _without(name):
    def change(held):
        del held[name]

    return change


FILES = [
    *(
        resume(
            f"half of {name}",
            [name, "damaged"],
            functools.partial(lambda folder, name: cut(folder / name), name=name),
        )
        for name in (STATE, WEIGHTS, *PICKLED)
    ),
    *(resume(f"an empty {name}", [name, "damaged"], write(name, b"")) for name in (STATE, WEIGHTS, *PICKLED)),
    *(resume(f"noise for {name}", name, write(name, bytes(range(256)) * 9)) for name in (STATE, WEIGHTS, *PICKLED)),
    *(resume(f"code in {name}", [name, "could run code"], write(name, pickle.dumps(Touch()))) for name in PICKLED),
    *(resume(f"a list for {name}", name, tensors(name, lambda held: [1, 2])) for name in PICKLED),
    *(resume(f"a link to nowhere for {name}", name, link_to_nowhere(name)) for name in (WEIGHTS, *PICKLED)),
    resume("no weights", "has no model.safetensors", lambda folder: (folder / WEIGHTS).unlink()),
    resume(
        "a file for a folder",
        "out/checkpoint-9",
        lambda folder: folder.with_name("checkpoint-9").write_text(""),
        "--resume_from_checkpoint",
        "out/checkpoint-9",
    ),
    resume("no state", "has no trainer_state.json", lambda folder: (folder / STATE).unlink()),
    elsewhere("an empty optimizer.pt", "optimizer.pt is damaged", write(OPTIMIZER, b"")),
    elsewhere("no state", "it has no trainer_state.json", lambda folder: (folder / STATE).unlink()),
    resume(
        "the model's folder for a checkpoint",
        "it has no trainer_state.json",
        lambda folder: None,
        "--resume_from_checkpoint",
        "model",
    ),
]


def _half_listed(name):
    return resume(
        f"half of {name}, by the manifest",
        ["all are damaged", f"{name} has", "bytes instead of"],
        lambda folder: cut(folder / name),
        listed=True,
    )


def _one_bit(folder):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)


LISTED = [
    *(_half_listed(name) for name in (STATE, WEIGHTS, *PICKLED, "training_args.bin", "config.json")),
    resume("one bit of the weights", [f"{WEIGHTS} is not what was saved", "checksum"], _one_bit, listed=True),
    resume(
        "optimizer and schedule swapped, by the manifest",
        f"{OPTIMIZER} has",
        swapped(OPTIMIZER, SCHEDULER),
        listed=True,
    ),
    resume("a missing schedule", f"{SCHEDULER} is missing", lambda folder: (folder / SCHEDULER).unlink(), listed=True),
    resume("half of the manifest", f"{MANIFEST} is damaged", lambda folder: cut(folder / MANIFEST), listed=True),
    resume("a manifest of no files", f"{MANIFEST} is damaged", write(MANIFEST, b'{"files": {}}'), listed=True),
    resume(
        "a manifest that leads out",
        f"{MANIFEST} is damaged",
        write(MANIFEST, b'{"files": {"../../x": {"size": 1, "sha256": ""}}}'),
        listed=True,
    ),
    resume(
        "one bit of the weights of the one that is asked for",
        ["is damaged", "There is no good one beside it", "delete its manifest.json"],
        _one_bit,
        "--resume_from_checkpoint",
        "out/checkpoint-2",
        listed=True,
    ),
]


STATES = [
    state("no step", "is damaged", global_step=None),
    state("a step that no float holds", "global_step", global_step=10**400),
    state("a fraction of a step", "global_step", global_step=1.5),
    state("a history that is text", "log_history", log_history="all went well"),
    state("a number for its best checkpoint", "best_model_checkpoint", best_model_checkpoint=7),
    state("a word for its best metric", "best_metric", best_metric="good"),
    state("a list of callbacks", "stateful_callbacks", stateful_callbacks=[1]),
    resume("a state in UTF-16", f"{STATE} is damaged", write(STATE, json.dumps({}).encode("utf-16"))),
    resume("a state of endless depth", f"{STATE} is damaged", write(STATE, b"[" * 100_000)),
    resume(
        "a state with NaN for its epoch", STATE, write(STATE, b'{"global_step": 2, "epoch": NaN, "log_history": []}')
    ),
]

OTHERS = [
    resume("weights of a wider model", "belong to another model", _wider),
    resume("weights of another architecture", "belong to another model", _another_architecture),
    resume("optimizer and schedule swapped", OPTIMIZER, swapped(OPTIMIZER, SCHEDULER)),
    resume("generators for the optimizer", OPTIMIZER, swapped(OPTIMIZER, RNG)),
    resume("generators for the schedule", SCHEDULER, swapped(SCHEDULER, RNG)),
    resume("another optimizer", [OPTIMIZER, "does not belong to this run"], _sgd),
    resume(
        "an optimizer of another kind by flag",
        [OPTIMIZER, "does not belong to this run"],
        lambda folder: None,
        "--optim",
        "sgd",
    ),
    resume("momenta of another shape", [OPTIMIZER, "does not belong to this run"], tensors(OPTIMIZER, _shapes)),
    resume("no momenta", [OPTIMIZER, "does not belong to this run"], tensors(OPTIMIZER, _without_momentum)),
    resume("a schedule with a method", SCHEDULER, tensors(SCHEDULER, _put("step", value=3))),
    resume("a schedule without its place", SCHEDULER, tensors(SCHEDULER, _without("last_epoch"))),
    resume("no generator of Python", RNG, tensors(RNG, _without("python"))),
    resume(
        "a short state of torch's generator",
        f"{RNG} is damaged",
        tensors(RNG, lambda held: held.update(cpu=held["cpu"][:9].clone())),
    ),
    resume(
        "a word for the place of the loop", f"{LOOP} is damaged", lambda folder: edit(folder / LOOP, processes="x")
    ),
    resume("words for the sum of the loop", f"{LOOP} is damaged", _position(lambda each: each.update(sum="many"))),
    resume("no JSON for the place of the loop", f"{LOOP} is damaged", write(LOOP, b"here")),
    resume("a word for the place of the loop of 0.1", f"{RNG} is damaged", _position_of_0_1(lambda each: "here")),
    resume("a word for the seed of the order", f"{RNG} is damaged", tensors(RNG, _put("order_seed", value="x"))),
    resume(
        "a number for the state before the epoch", f"{RNG} is damaged", tensors(RNG, _put("before_epoch", value=3))
    ),
]

CHECKPOINTS = [*FILES, *LISTED, *STATES, *OTHERS]
