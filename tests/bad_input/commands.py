"""The command mps-trainer."""

from __future__ import annotations

from .cases import Case


def command(name, *words, says, **more):
    return Case(f"commands: {name}", words, says, program="mps-trainer", **more)


SCRIPT = {"train.py": "open('ran', 'w')\n"}

COMMANDS = [
    command("nothing", says="--help"),
    command("no such command", "operate", says="'operate'"),
    command("no such flag", "--frobnicate", says=["COMMAND", "--help"]),
    command("no such flag of doctor", "doctor", "--frobnicate", says="--frobnicate"),
    command("a word too many for doctor", "doctor", "now", says="now"),
    command(
        "doctor among no number of processes",
        "doctor",
        says="WORLD_SIZE is 'two'",
        environ={"WORLD_SIZE": "two"},
        status=1,
    ),
    command(
        "doctor of a rank that is not there",
        "doctor",
        says="RANK is 5",
        environ={"WORLD_SIZE": "2", "RANK": "5"},
        status=1,
    ),
    command("no such flag of selftest", "selftest", "--frobnicate", says="--frobnicate"),
    command("a word too many for selftest", "selftest", "mps", says="mps"),
    command("selftest with a report but no name", "selftest", "--json", says="--json"),
    command("selftest with a report in no folder", "selftest", "--json", "no/x.json", says="--json no/x.json cannot"),
    command("selftest with a report that is a folder", "selftest", "--json", ".", says="--json . cannot be written"),
    command("selftest with a report of no name", "selftest", "--json", "", says="cannot be written"),
    command("a value for selftest's switch", "selftest", "--simulate=16GB", says="--simulate"),
    command(
        "selftest among no number of processes",
        "selftest",
        says="WORLD_SIZE is 'two'",
        environ={"WORLD_SIZE": "two"},
    ),
    command(
        "selftest among two processes",
        "selftest",
        says="2 processes were started",
        environ={"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"},
    ),
    *(
        case
        for verb in ("check", "simulate")
        for case in [
            command(f"{verb} nothing", verb, says="SCRIPT"),
            command(f"{verb} a missing script", verb, "gone.py", says="There is no file gone.py"),
            command(f"{verb} a folder", verb, ".", says="There is no file ."),
            command(f"{verb} an empty name", verb, "", says="There is no file"),
            command(f"{verb} with no such flag", verb, "--frobnicate", "train.py", says="--frobnicate", files=SCRIPT),
            command(
                f"{verb} with a report in no folder",
                verb,
                "--json",
                "no/folder/x.json",
                "train.py",
                says="--json no/folder/x.json cannot be written",
                files=SCRIPT,
            ),
            command(
                f"{verb} with a report that is a folder",
                verb,
                "--json",
                ".",
                "train.py",
                says="--json . cannot be written",
                files=SCRIPT,
            ),
            command(
                f"{verb} with a report without a name", verb, "--json", "", "train.py", says="--json", files=SCRIPT
            ),
            command(
                f"{verb} with the script for a report",
                verb,
                "--json",
                "train.py",
                "train.py",
                says="--json train.py is the script",
                files=SCRIPT,
            ),
            command(
                f"{verb} with a report below a file",
                verb,
                "--json",
                "train.py/x",
                "train.py",
                says="--json train.py/x cannot be written",
                files=SCRIPT,
            ),
        ]
    ),
    command("check no batch", "check", "--batches", "0", "train.py", says="--batches: '0'", files=SCRIPT),
    command("check many batches", "check", "--batches", "many", "train.py", says="--batches: 'many'", files=SCRIPT),
    command(
        "check a superscript of batches", "check", "--batches", "²", "train.py", says="--batches: '²'", files=SCRIPT
    ),
    command(
        "check batches of five thousand digits",
        "check",
        "--batches",
        "9" * 5000,
        "train.py",
        says="--batches: '99",
        files=SCRIPT,
    ),
    command("simulate plenty of memory", "simulate", "--memory", "plenty", "train.py", says="plenty", files=SCRIPT),
    command("simulate no memory", "simulate", "--memory", "0", "train.py", says="memory", files=SCRIPT),
    command("simulate less than no memory", "simulate", "--memory=-1GB", "train.py", says="-1GB", files=SCRIPT),
    command("simulate memory without end", "simulate", "--memory", "inf", "train.py", says="inf", files=SCRIPT),
    command("simulate memory of nan", "simulate", "--memory", "nanGB", "train.py", says="nanGB", files=SCRIPT),
]
