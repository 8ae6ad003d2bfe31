"""The command mps-trainer."""

from .cases import Case, split

SCRIPT = {"train.py": "open('ran', 'w')\n"}
# The user has settings neither of this package nor of Accelerate.
NO_SETTINGS = {"XDG_CONFIG_HOME": "config", "HF_HOME": "hf"}


def command(name, words, says, files=SCRIPT, **more):
    return Case(f"commands: {name}", split(words), says, files, program="mps-trainer", **more)


def launch(name, words, says, files=SCRIPT, environ=NO_SETTINGS):
    return command(f"launch {name}", ("launch", *split(words)), says, files, environ=environ)


def config(name, words, says, files=SCRIPT):
    return command(f"config {name}", ("config", *split(words)), says, files, environ=NO_SETTINGS)


COMMANDS = [
    command("doctor among no number of processes", "doctor", "WORLD_SIZE is", environ={"WORLD_SIZE": "two"}, status=1),
    command("doctor of no file", "doctor --facts gone.json", "--facts gone.json: it cannot be read (No such file"),
    command("selftest with a report in no folder", "selftest --json no/x.json", "--json no/x.json cannot"),
    command("selftest among processes", "selftest", "2 processes were", environ={"WORLD_SIZE": "2", "RANK": "0"}),
    command("speed with a report in no folder", "speed --json no/x.json", "--json no/x.json cannot"),
    command("speed with the script for a report", "speed --json train.py", "--json train.py was not written"),
    command("speed among processes", "speed", "2 processes were", environ={"WORLD_SIZE": "2", "RANK": "0"}),
    command("check an empty name", 'check ""', "There is no file"),
    command("check with a report in no folder", "check --json no/x.json train.py", "--json no/x.json cannot"),
    command("check with a report that is a folder", "check --json . train.py", "--json . cannot be"),
    command("check with the script for a report", "check --json train.py train.py", "--json train.py is"),
    command("check no batch", "check --batches 0 train.py", "--batches: '0'"),
    command("check batches of five thousand digits", f"check --batches {'9' * 5000} train.py", "--batches: '99"),
    command("simulate plenty of memory", "simulate --memory plenty train.py", "plenty"),
    command("no such example", "example speech mine", ["speech", "text-classification", "notebooks"]),
    command("an example without a folder", "example notebooks", "mps-trainer example notebooks DIR"),
    command("an example to a folder of no name", "example notebooks ''", "A folder"),
    command("an example over a file", "example notebooks train.py", "train.py is a file"),
    command("an example over a folder", "example notebooks a", "a is not empty", files={"a/b": "c"}),
    command("export no adapter", "export . --to mlx out", "there is no PEFT adapter in it"),
    command("export a missing folder", "export gone --to mlx out", "There is no folder gone"),
    command("export in no such format", "export . --to gguf out", "'gguf'"),
    command("export in no format", "export . out", "required: --to"),
    command("export over a file", "export . --to mlx train.py", "train.py is not a folder"),
    command("a completion for no such shell", "--print-completion csh", "'csh'"),
    launch("a missing script", "gone.py", "There is no file gone.py"),
    launch("in no such format", "--mixed_precision fp8 train.py", "'fp8'"),
    launch("with missing settings", "--config_file gone.yaml train.py", "gone.yaml cannot be read: "),
    launch(
        "with a missing GPU",
        "--config_file c.yaml train.py",
        ["c.yaml: ", "built without XPU"],
        {"c.yaml": "device: xpu", **SCRIPT},
        {**NO_SETTINGS, "ACCELERATE_USE_CPU": "false"},
    ),
    config("what is not shown", "print", "'print'"),
    config("shown and written", "show --default", "not allowed with argument show"),
    config("written over a script", "--default --config_file train.py", "train.py cannot be read: "),
    config("written below a file", "--default --config_file train.py/c.yaml", "c.yaml cannot be written: "),
    config("over theirs", "--default --config_file c.yaml", "belongs to Acc", {"c.yaml": "distributed_type: NO"}),
]
