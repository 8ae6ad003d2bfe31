"""Flags of run_glue.py: of no such name, of the wrong type, out of range, and at odds with each other."""

from __future__ import annotations

from tests.examples.conftest import EXAMPLE

from .cases import EMBEDDED_TASK, NO_WEIGHTS, TASK, TRAIN, TSV, TSV_FILES, Case

OUT = ("--output_dir", "out")


def flag(name, *words, says, **more):
    """Training the embedded model is fine; `words` beside it are not."""
    return Case(f"flags: {name}", (*EMBEDDED_TASK, *words, *OUT), says, **more)


def alone(name, *words, says, **more):
    return Case(f"flags: {name}", (*words, *OUT), says, **more)


def training(name, *words, says):
    """A run whose data and model are fine, and which is refused where the part is made that `words` are about."""
    return Case(f"flags: {name}", (*TRAIN, *words, *OUT), says, TSV_FILES, uses=["model"])


def _use(folder):
    (folder / "out").mkdir()
    (folder / "out" / "thesis.txt").write_text("two years of work")


SOURCES = [
    alone("no such task", "--task_name", "snli", says="task_name='snli' is no GLUE task. Tasks are cola, mnli"),
    alone("an empty task", "--task_name", "", says="task_name='' is not accepted"),
    alone("embedded without a task", "--embedded", says="--embedded and --data_dir need --task_name"),
    alone("data_dir without a task", "--data_dir", "data", says="--embedded and --data_dir need --task_name"),
    alone("nothing at all", says="There is nothing to train on. Give --task_name"),
    alone("no model", *TASK, "--data_dir", "data", says="--model_name_or_path is missing"),
    flag("two sources", "--data_dir", "data", says="--embedded and --data_dir are two sources of data"),
    flag("embedded and a file", "--train_file", "a.csv", says="two sources of data", files={"a.csv": "text,label\n"}),
    flag("embedded and a dataset", "--dataset_name", "imdb", says="two sources of data"),
    alone("nothing to do", *TASK, "--data_dir", "data", *NO_WEIGHTS, says="Nothing is asked for: add --do_train"),
    alone("a missing data_dir", *TSV[:2], "--data_dir", "gone", *NO_WEIGHTS, "--do_eval", says="gone is not a folder"),
    alone("an empty data_dir", *TASK, "--data_dir", "", *NO_WEIGHTS, "--do_eval", says="data_dir='' is not accepted"),
    alone("a missing train_file", "--train_file", "gone.csv", says="gone.csv does not exist"),
    alone("a script for data", "--train_file", str(EXAMPLE / "run_glue.py"), says="neither a .csv nor a .json file"),
    alone(
        "a folder for data",
        "--train_file",
        "a.csv",
        says="a.csv does not exist, or is not a file",
        make=lambda folder: (folder / "a.csv").mkdir(),
    ),
    alone(
        "a link to nowhere for data",
        "--train_file",
        "a.csv",
        says="a.csv does not exist, or is not a file",
        make=lambda folder: (folder / "a.csv").symlink_to("gone.csv"),
    ),
    flag(
        "a file for cache_dir", "--cache_dir", "a.txt", says="cache_dir='a.txt' is not accepted", files={"a.txt": ""}
    ),
    alone(
        "two kinds of files",
        "--train_file",
        "a.csv",
        "--validation_file",
        "a.json",
        *NO_WEIGHTS,
        says="give all as .csv, or all as .json",
        files={"a.csv": "text,label\n", "a.json": "{}"},
    ),
]

WORDS = [
    flag("no such flag", "--no_such_flag", "1", says=["--no_such_flag", "--help"]),
    flag("a misspelled flag", "--embeded", says=["'--embeded' is neither", "Did you mean --embedded?"]),
    flag("an abbreviated flag", "--learn", "1e-3", says="--learn"),
    flag("a word too many", "--do_train", "yes", "mrpc", says=["'mrpc'", "--help"]),
    flag("a single dash", "-embedded", says="-embedded"),
    flag("a flag from nowhere", "--épochs", "3", says="--épochs"),
    flag("an escape sequence", "--\x1b[2J", "3", says="--\\x1b[2J"),
    flag("a configuration beside flags", "--do_train", "yes", "mrpc.json", says="'mrpc.json' is neither a flag"),
    Case("flags: a flag without its value", (*OUT, "--task_name"), ["--task_name", "expected one argument"]),
    flag("text for a number", "--learning_rate", "fast", says=["--learning_rate", "invalid float value: 'fast'"]),
    flag("nothing for a number", "--learning_rate", "", says=["--learning_rate", "invalid float value: ''"]),
    flag("a fraction for a count", "--max_steps", "1.5", says=["--max_steps", "invalid int value: '1.5'"]),
    flag("a comma for a point", "--weight_decay", "0,1", says=["--weight_decay", "invalid float value: '0,1'"]),
    flag("no such strategy", "--eval_strategy", "sometimes", says=["--eval_strategy", "invalid choice: 'sometimes'"]),
    flag("neither true nor false", "--fp16", "maybe", says="--fp16"),
    flag("no JSON", "--lr_scheduler_kwargs", "{", says="lr_scheduler_kwargs='{' is not accepted"),
    flag("JSON of endless depth", "--lr_scheduler_kwargs", "[" * 9999, says="lr_scheduler_kwargs="),
    flag("an empty tracker", "--report_to", "", says="report_to='' is not accepted"),
    Case("flags: an empty output folder", (*EMBEDDED_TASK, "--output_dir", ""), "output_dir='' is not accepted"),
]

RANGES = [
    flag("a negative rate", "--learning_rate", "-1", says="learning_rate=-1.0 is not accepted"),
    flag("a rate of nan", "--learning_rate", "nan", says="learning_rate=nan is not accepted"),
    flag("endless epochs", "--num_train_epochs", "inf", says="num_train_epochs=inf is not accepted"),
    flag("epochs without end", "--num_train_epochs", "1e18", says="such a run does not end"),
    flag("no token", "--max_seq_length", "0", says="max_seq_length=0 is not accepted"),
    flag("fewer than no examples", "--max_train_samples", "-5", says="max_train_samples=-5 is not accepted"),
    flag("an empty batch", "--per_device_train_batch_size", "0", says="per_device_train_batch_size=0 is not"),
    flag(
        "a batch of all the world", "--per_device_train_batch_size", "9" * 30, says="per_device_train_batch_size=999"
    ),
    flag(
        "accumulation without end", "--gradient_accumulation_steps", "9" * 30, says="gradient_accumulation_steps=999"
    ),
    flag("a seed below 0", "--seed", "-1", says="seed=-1 is not accepted"),
    flag("a seed of five thousand digits", "--seed", "9" * 5000, says="--seed"),
    flag("steps of five hundred digits", "--max_steps", "9" * 500, says="max_steps=999"),
    flag(
        "a million workers", "--dataloader_num_workers", "1000000", says="=1000000 is not accepted: it must be at most"
    ),
    flag(
        "an unknown keyword of checkpointing",
        *("--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"a": 1}'),
        says="has 'a', which torch.utils.checkpoint does not take. It takes use_reentrant, ",
    ),
    flag("workers below 0", "--dataloader_num_workers", "-2", says="dataloader_num_workers=-2 is not accepted"),
    flag("a beta of 1", "--adam_beta1", "1", says="adam_beta1=1.0 is not accepted"),
    flag("no log level", "--log_level", "shout", says="--log_level"),
    flag("half a device", "--devices", "0.5", says="devices="),
    flag("a device twice", "--devices", "0,0", says="names a device twice"),
]

COMBINATIONS = [
    flag("two precisions", "--fp16", "--bf16", says="fp16=True and bf16=True exclude each other"),
    flag(
        "the best without evaluations", "--load_best_model_at_end", says="load_best_model_at_end=True is not accepted"
    ),
    flag("a plateau of nothing", "--lr_scheduler_type", "reduce_lr_on_plateau", says="used with an eval_strategy"),
    flag("prefetching without workers", "--dataloader_prefetch_factor", "2", says="dataloader_num_workers is above 0"),
    flag("nccl on the CPU", "--ddp_backend", "nccl", "--use_cpu", says="nccl"),
    flag(
        "a device that is not here",
        "--accelerator",
        "xpu",
        says="accelerator='xpu' was requested",
        environ={"ACCELERATE_USE_CPU": "false"},
    ),
    flag(
        "an old name and its new one",
        "--evaluation_strategy",
        "epoch",
        "--eval_strategy",
        "steps",
        says=["evaluation_strategy", "Leave out"],
    ),
    flag("what is not supported", "--deepspeed", "ds.json", says="deepspeed='ds.json' is not supported"),
    flag("a debugger of TPUs", "--debug", "tpu_metrics_debug", says="is not supported"),
    flag("no such debugger", "--debug", "everything", says="'everything'"),
    flag("no checkpoint of that name", "--resume_from_checkpoint", "gone", says="there is no such folder"),
    flag("resuming from nothing", "--resume_from_checkpoint", "True", says="No valid checkpoint found in output"),
    flag("a used output folder", says="exists, is not empty and has no checkpoint", make=_use),
    flag("a file for the output folder", says="out is a file", files={"out": "two years of work"}),
    Case(
        "flags: a folder in a file",
        (*EMBEDDED_TASK, "--output_dir", "notes/run"),
        "notes is a file",
        {"notes": "two years of work"},
    ),
    Case(
        "flags: several processes",
        (*EMBEDDED_TASK, *OUT),
        "Process 1 of 2 cannot join the others",
        environ={"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"},
    ),
    Case(
        "flags: no place in a step of Slurm",
        (*EMBEDDED_TASK, *OUT),
        "SLURM_PROCID is not set",
        environ={"SLURM_STEP_NUM_TASKS": "2"},
    ),
    Case(
        "flags: no number of processes", (*EMBEDDED_TASK, *OUT), "WORLD_SIZE is 'two'", environ={"WORLD_SIZE": "two"}
    ),
]

PARTS = [
    training("no such tracker here", "--report_to", "wandb_of_old", says="report_to=['wandb_of_old'] cannot be used"),
    training("settings of another schedule", "--lr_scheduler_kwargs", '{"zigzag": 1}', says="lr_scheduler_type="),
    training(
        "a schedule without its settings",
        "--lr_scheduler_type",
        "cosine_with_min_lr",
        says="lr_scheduler_type='cosine_with_min_lr'",
    ),
    training("settings of no optimizer", "--optim_args", "fast", says="optim_args='fast' cannot be read"),
    training(
        "a setting of the wrong type",
        "--optim",
        "rmsprop",
        "--optim_args",
        "momentum=much",
        says="optim_args='momentum=much'",
    ),
    training("an optimizer that is not installed", "--optim", "adamw_bnb_8bit", says="optim='adamw_bnb_8bit'"),
    training("no such compiler", "--torch_compile_backend", "gcc", says="torch_compile_backend='gcc'"),
    training("no such mode of compiling", "--torch_compile_mode", "faster", says="torch_compile_mode='faster'"),
    training(
        "no such metric",
        "--metric_for_best_model",
        "bleu",
        "--eval_strategy",
        "epoch",
        "--save_strategy",
        "best",
        says="metric_for_best_model='bleu'",
    ),
    training(
        "no such metric for a plateau",
        "--lr_scheduler_type",
        "reduce_lr_on_plateau",
        "--eval_strategy",
        "epoch",
        "--metric_for_best_model",
        "f2",
        says="metric_for_best_model='f2'",
    ),
    training("a repository of no such name", "--push_to_hub", "--hub_model_id", "a//b", says="hub_model_id='a//b'"),
    training("an upload without a hub", "--push_to_hub", "--hub_model_id", "ada/boats", says="push_to_hub"),
]

FLAGS = [*SOURCES, *WORDS, *RANGES, *COMBINATIONS, *PARTS]
