"""Flags of run_glue.py that are unknown, of the wrong type, out of range, or contradict each other."""

from tests.examples.conftest import EXAMPLE

from .cases import EMBEDDED_TASK, NO_WEIGHTS, TASK, TRAIN, TSV_FILES, Case, split

OUT = ("--output_dir", "out")


def flag(name, words, says, **more):
    """Returns a case of `words` beside those that train the embedded model."""
    return Case(f"flags: {name}", (*EMBEDDED_TASK, *split(words), *OUT), says, **more)


def alone(name, words, says, **more):
    return Case(f"flags: {name}", (*split(words), *OUT), says, **more)


def training(name, words, says):
    """Returns a case whose data and model are fine, and which is refused when the part of `words` is made."""
    return Case(f"flags: {name}", (*TRAIN, *split(words), *OUT), says, TSV_FILES, uses=["model"])


def _use(folder):
    (folder / "out").mkdir()
    (folder / "out" / "thesis.txt").write_text("two years of work")


FLAGS = [
    alone("no such task", "--task_name snli", "task_name='snli' is no GLUE task. Tasks are cola, mnli"),
    alone("an empty task", "--task_name ''", "task_name='' is not accepted"),
    alone("embedded without a task", "--embedded", "--embedded and --data_dir need --task_name"),
    alone("nothing at all", "", "There is nothing to train on. Give --task_name"),
    alone("no model", (*TASK, "--data_dir", "data"), "--model_name_or_path is missing"),
    flag("two sources", "--data_dir data", "--embedded and --data_dir are two sources of data"),
    alone("nothing to do", (*TASK, "--data_dir", "data", *NO_WEIGHTS), "Nothing is asked for: add --do_train"),
    alone("a missing data_dir", (*TASK, "--data_dir", "gone", *NO_WEIGHTS, "--do_eval"), "data_dir gone has none of"),
    alone("a missing train_file", "--train_file gone.csv", "gone.csv does not exist"),
    alone(
        "a script", ("--train_file", str(EXAMPLE / "run_glue.py"), *NO_WEIGHTS, "--do_train"), "its name ends in .py"
    ),
    alone("a folder for data", "--train_file a.csv", "a.csv does not", make=lambda folder: (folder / "a.csv").mkdir()),
    # words
    flag("no such flag", "--no_such_flag 1", ["--no_such_flag", "--help"]),
    flag("a misspelled flag", "--embeded", ["'--embeded' is neither", "Did you mean --embedded?"]),
    flag("an abbreviated flag", "--learn 1e-3", "--learn"),
    flag("a word too many", "--do_train yes mrpc", ["'mrpc'", "--help"]),
    flag("an escape sequence", "'--\x1b[2J' 3", "--\\x1b[2J"),
    Case("flags: a flag without its value", (*OUT, "--task_name"), ["--task_name", "expected one argument"]),
    flag("JSON of endless depth", f"--lr_scheduler_kwargs {'[' * 9999}", "lr_scheduler_kwargs="),
    # ranges
    flag("no token", "--max_seq_length 0", "max_seq_length=0 is not accepted"),
    flag("a batch of all the world", f"--per_device_train_batch_size {'9' * 30}", "per_device_train_batch_size=999"),
    flag("a seed of five thousand digits", f"--seed {'9' * 5000}", "--seed"),
    # combinations
    flag("a device that is not here", "--accelerator xpu", "'xpu' was", environ={"ACCELERATE_USE_CPU": "false"}),
    flag("predictions in pieces", "--eval_do_concat_batches False", "needs the predictions as one array"),
    flag("predictions of loss alone", "--do_predict --prediction_loss_only", "--do_predict needs predictions"),
    flag("no checkpoint of that name", "--resume_from_checkpoint gone", "there is no such folder"),
    flag("resuming from nothing", "--resume_from_checkpoint True", "No valid checkpoint found in output"),
    flag("a used output folder", "", "exists, is not empty and has no checkpoint", make=_use),
    flag("several processes", "", "1 of 2 cannot", environ={"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}),
    flag("no place in a step of Slurm", "", "SLURM_PROCID is not set", environ={"SLURM_STEP_NUM_TASKS": "2"}),
    # parts that cannot be made
    training("settings of another schedule", "--lr_scheduler_kwargs '{\"zigzag\": 1}'", "lr_scheduler_type="),
    training("a schedule without its settings", "--lr_scheduler_type cosine_with_min_lr", "'cosine_with_min_lr'"),
    training("no such compiler", "--torch_compile_backend gcc", "torch_compile_backend='gcc'"),
    training("a repository of no such name", "--push_to_hub --hub_model_id a//b", "hub_model_id='a//b'"),
    training("an upload without a hub", "--push_to_hub --hub_model_id ada/boats", "the hub can be reached"),
]
