"""The command mps-trainer."""

from __future__ import annotations

from .cases import Case


def command(name, *words, says, **more):
    return Case(f"commands: {name}", words, says, program="mps-trainer", **more)


SCRIPT = {"train.py": "open('ran', 'w')\n"}
# a user who has settings of neither kind
NO_SETTINGS = {"XDG_CONFIG_HOME": "config", "HF_HOME": "hf"}


def launch(name, *words, says, files=SCRIPT, **more):
    environ = {**NO_SETTINGS, **more.pop("environ", {})}
    return command(f"launch {name}", "launch", *words, says=says, files=files, environ=environ, **more)


def config(name, *words, says, **more):
    environ = {**NO_SETTINGS, **more.pop("environ", {})}
    return command(f"config {name}", "config", *words, says=says, environ=environ, **more)


def settings(text):
    return {"c.yaml": text, **SCRIPT}


COMMANDS = [
    command("report of nothing", "report", says="OUTPUT_DIR"),
    command("report of no folder", "report", "gone", says="gone does not exist. Name the output_dir"),
    command("report of a folder without a run", "report", ".", says="There is no training run in ."),
    command(
        "report of a damaged record",
        "report",
        ".",
        says="run_record.json cannot be read",
        files={"run_record.json": "{"},
    ),
    command(
        "report over a file that is none",
        *("report", ".", "--output", "mine.txt"),
        says="mine.txt exists and is no report",
        files={"trainer_state.json": '{"log_history": []}', "mine.txt": "mine"},
    ),
    command("nothing", says="--help"),
    command("no such command", "operate", says="'operate'"),
    command("no such flag", "--frobnicate", says=["--frobnicate", "--help"]),
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
    command("no such flag of env", "env", "--frobnicate", says="--frobnicate"),
    command("a word too many for env", "env", "now", says="now"),
    command(
        "env among no number of processes", "env", says="WORLD_SIZE is '2.5'", environ={"WORLD_SIZE": "2.5"}, status=1
    ),
    *(
        command(f"doctor of {name}", "doctor", "--facts", file, says=says, files={} if text is None else {file: text})
        for name, file, text, says in (
            ("no file", "gone.json", None, "--facts gone.json: there is no such file"),
            ("a folder", ".", None, "Is a directory"),
            ("a file without a name", "", None, "--facts"),
            ("an empty file", "x.json", "", "it is not JSON"),
            ("a screen", "x.txt", "Nothing to fix. Training runs on mps.\n", "it is not JSON"),
            ("bytes", "x.json", b"\xff\xfe", "it is not JSON"),
            ("brackets without end", "x.json", "[" * 100_000, "it is not JSON"),
            ("a list", "x.json", "[]", "it holds a list"),
            ("no machine", "x.json", "{}", 'it has no "system"'),
            ("an unknown key", "x.json", '{"system": "Linux", "gpu": 1}', 'it has "gpu"'),
            ("a wrong type", "x.json", '{"system": "Linux", "cuda_count": "8"}', 'its "cuda_count" is "8"'),
            ("a wrong number", "x.json", '{"system": "Linux", "world_size": 0}', 'its "world_size" is 0'),
        )
    ),
    command("doctor of nothing", "doctor", "--facts", says="--facts"),
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
    command("no such example", "example", "speech", "mine", says=["speech", "text-classification", "notebooks"]),
    command("an example without a folder", "example", "notebooks", says="mps-trainer example notebooks DIR"),
    command("an example to a folder of no name", "example", "notebooks", "", says="A folder"),
    command("an example in two folders", "example", "notebooks", "a", "b", says="b"),
    command("an example over a file", "example", "notebooks", "train.py", says="train.py is a file", files=SCRIPT),
    command("an example below a file", "example", "notebooks", "train.py/x", says="Not a directory", files=SCRIPT),
    command("an example over a folder", "example", "notebooks", "a", says="a is not empty", files={"a/b": "c"}),
    command("a completion for no such shell", "--print-completion", "csh", says="'csh'"),
    launch("nothing", says="SCRIPT"),
    launch("a missing script", "gone.py", says="There is no file gone.py"),
    launch("a folder", ".", says="There is no file ."),
    launch("a missing module", "-m", "gone.train", says="There is no module 'gone'"),
    launch("no module", "-m", "", says="There is no module ''"),
    launch("with no such flag", "--frobnicate", "train.py", says="--frobnicate"),
    launch("in no such format", "--mixed_precision", "fp8", "train.py", says="'fp8'"),
    launch("in no process", "--num_processes", "0", "train.py", says=["'0' is not valid", "from 1 to 1024"]),
    launch("in two and a half processes", "--num_processes", "2.5", "train.py", says="'2.5' is not valid"),
    launch("in a million processes", "--num-processes", "1000000", "train.py", says="from 1 to 1024"),
    launch("with missing settings", "--config_file", "gone.yaml", "train.py", says="There is no file gone.yaml"),
    launch(
        "with settings in no YAML",
        "--config_file",
        "c.yaml",
        "train.py",
        says="c.yaml is not valid",
        files=settings("["),
    ),
    launch(
        "with an unknown setting",
        *("--config_file", "c.yaml", "train.py"),
        says=["c.yaml has the key 'num_proceses'", "Did you mean num_processes?"],
        files=settings("num_proceses: 2"),
    ),
    launch(
        "with a setting of the wrong type",
        *("--config_file", "c.yaml", "train.py"),
        says="c.yaml has num_processes: 'two'",
        files=settings("num_processes: two"),
    ),
    launch(
        "with a number for Accelerate's word",
        *("--config_file", "c.yaml", "train.py"),
        says="c.yaml has mixed_precision: 16",
        files=settings("distributed_type: 'NO'\nmixed_precision: 16"),
    ),
    launch(
        "with broken settings of the user",
        "train.py",
        says="config.yaml has a list instead of settings",
        files={"config/mps_trainer/config.yaml": "- mps", **SCRIPT},
    ),
    launch(
        "on a GPU that is not there",
        *("--config_file", "c.yaml", "train.py"),
        says=["c.yaml: accelerator='xpu' was requested", "built without XPU"],
        files=settings("device: xpu"),
        environ={"ACCELERATE_USE_CPU": "false"},
    ),
    config("with no such flag", "--frobnicate", says="--frobnicate"),
    config("what is not shown", "print", says="'print'"),
    config("shown and written", "show", "--default", says="Leave one of them out"),
    config("shown from a missing file", "show", "--config_file", "gone.yaml", says="There is no file gone.yaml"),
    config("shown from a script", "show", "--config_file", "train.py", says="train.py", files=SCRIPT),
    config("written over a script", "--default", "--config_file", "train.py", says="not overwritten", files=SCRIPT),
    config("written over a folder", "--default", "--config_file", ".", says="Is a directory"),
    config(
        "written below a file",
        "--default",
        "--config_file",
        "train.py/c.yaml",
        says="not a writable folder",
        files=SCRIPT,
    ),
    config(
        "written over Accelerate's",
        *("--default", "--config_file", "c.yaml"),
        says="c.yaml belongs to Accelerate",
        files={"c.yaml": "distributed_type: MULTI_CPU"},
    ),
    config(
        "with Accelerate's in no YAML",
        "--default",
        says="default_config.yaml is not valid YAML in line 1",
        files={"hf/accelerate/default_config.yaml": "a: b: c"},
    ),
]
