"""The script's arguments: model, data, and what the embedded sample changes about training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glue_config import is_config, read_config
from glue_errors import UserError
from glue_tasks import TASKS

from mps_trainer import TrainingArguments
from mps_trainer.arguments.data import parts_of_batch
from mps_trainer.arguments.readers import refuse
from mps_trainer.scripts.flags import OneLineParser, check_types, unknown_flag
from mps_trainer.scripts.flags import given as flags_given

EMBEDDED = Path(__file__).parent / "embedded"
# For a tiny model that starts from random weights; a pretrained one wants the usual defaults.
EMBEDDED_DEFAULTS = {
    "learning_rate": 1e-3,
    "num_train_epochs": 12.0,
    "per_device_train_batch_size": 32,
    "warmup_steps": 0.1,
    "logging_steps": 50,
    "save_strategy": "epoch",
    "save_total_limit": 1,
    "max_seq_length": 64,
}
SOURCES = (
    "a hub that can be reached, --data_dir with the benchmark's TSV files, --train_file and --validation_file, "
    "or --embedded for the sample that comes with this script"
)


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Folder of a pretrained model, or its name on the hub."}
    )
    config_name: str | None = field(default=None, metadata={"help": "Configuration. [the model's]"})
    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer. [the model's]"})
    cache_dir: str | None = field(default=None, metadata={"help": "Where to keep what the hub sends. [HF_HOME]"})
    use_fast_tokenizer: bool = field(default=True, metadata={"help": "Use a tokenizer of the tokenizers library."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model on the hub."})
    token: str | None = field(
        default=None, metadata={"help": "Token for the hub. [the one stored by `hf auth login`]"}
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run model code that the hub sends. Only for repositories you trust."}
    )
    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Begin a head of another size anew instead of refusing the model."}
    )

    def __post_init__(self) -> None:
        check_types(self)
        if self.cache_dir is not None and Path(self.cache_dir).exists() and not Path(self.cache_dir).is_dir():
            raise refuse("cache_dir", self.cache_dir, "a folder, or a new name for one")


@dataclass
class DataTrainingArguments:
    task_name: str | None = field(default=None, metadata={"help": "GLUE task: " + ", ".join(TASKS) + "."})
    data_dir: str | None = field(default=None, metadata={"help": "Folder with the task's TSV files."})
    embedded: bool = field(
        default=False, metadata={"help": "Train a tiny model on the small sample that comes with this script."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "Dataset on the hub, instead of a task."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of that dataset."})
    train_file: str | None = field(default=None, metadata={"help": "Training data, csv or json."})
    validation_file: str | None = field(default=None, metadata={"help": "Validation data, csv or json."})
    test_file: str | None = field(default=None, metadata={"help": "Test data, csv or json."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens after which an example is cut off."})
    pad_to_max_length: bool = field(
        default=False,
        metadata={"help": "Pad every example to max_seq_length; if false, each batch as its sampling strategy says."},
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again even if it was done before."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many examples."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many examples."})

    def __post_init__(self) -> None:
        check_types(self)
        if self.task_name is not None:
            self.task_name = self.task_name.lower()
            if self.task_name not in TASKS:
                raise ValueError(f"task_name={self.task_name!r} is no GLUE task. Tasks are {', '.join(TASKS)}.")
        elif self.embedded or self.data_dir is not None:
            raise ValueError("--embedded and --data_dir need --task_name: " + ", ".join(TASKS) + ".")
        elif self.dataset_name is None and self.train_file is None and self.validation_file is None:
            raise ValueError(
                "There is nothing to train on. Give --task_name (" + ", ".join(TASKS) + "), --dataset_name, or "
                "--train_file and --validation_file."
            )
        self._check_sources()
        for name in ("max_seq_length", "max_train_samples", "max_eval_samples", "max_predict_samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} is not accepted: it must be at least 1.")
        self._check_files()

    def _check_sources(self) -> None:
        given = {
            "--embedded": self.embedded,
            "--data_dir": self.data_dir,
            "--dataset_name": self.dataset_name,
            "--train_file": self.train_file,
            "--validation_file": self.validation_file,
            "--test_file": self.test_file,
        }
        sources = [flag for flag, value in given.items() if value]
        files = [flag for flag in sources if flag.endswith("_file")]
        if self.task_name is not None and files:
            raise ValueError(f"--task_name and {files[0]} are two sources of data: give one of them.")
        if len(sources) > 1 and len(sources) > len(files):
            raise ValueError(f"{sources[0]} and {sources[1]} are two sources of data: give one of them.")
        if self.task_name is not None and self.dataset_name is not None:
            raise ValueError("--task_name and --dataset_name are two sources of data: give one of them.")

    def _check_files(self) -> None:
        files = [file for file in (self.train_file, self.validation_file, self.test_file) if file is not None]
        for file in files:
            if Path(file).suffix not in (".csv", ".json"):
                raise ValueError(f"{file} is neither a .csv nor a .json file, by its name.")
            if not Path(file).is_file():
                raise ValueError(f"{file} does not exist, or is not a file.")
            if Path(file).stat().st_size == 0:
                raise ValueError(f"{file} is empty.")
        if len({Path(file).suffix for file in files}) > 1:
            raise ValueError(f"{' and '.join(files)} are of different kinds: give all as .csv, or all as .json.")


Arguments = tuple[ModelArguments, DataTrainingArguments, TrainingArguments]


def parse(argv: list[str]) -> Arguments:
    """The arguments from the command line, or from the one JSON or YAML file it names.

    Raises:
        UserError: for unknown flags, and for values that cannot be right.
    """
    parser = OneLineParser(
        (ModelArguments, DataTrainingArguments, TrainingArguments),
        prog="run_glue.py",
        description="Fine-tune a model for a GLUE task, or for text classification on data of your own.",
        allow_abbrev=False,
    )
    try:
        if len(argv) == 1 and is_config(argv[0]):
            config = read_config(Path(argv[0]))
            given = set(config)
            arguments = _from_config(parser, config, argv[0])
        else:
            given = flags_given(argv)
            if "embedded" in given:
                parser.set_defaults(**EMBEDDED_DEFAULTS)
            arguments = _from_flags(parser, argv)
    except (ValueError, TypeError) as error:
        raise UserError(str(error)) from error
    _complete(*arguments)
    _choose_faster(arguments[1], arguments[2], given)
    return arguments


def _from_config(parser: OneLineParser, config: dict[str, Any], path: str) -> Any:
    known = {each.name for kind in parser.dataclass_types for each in dataclasses.fields(kind) if each.init}
    unknown = [name for name in config if name not in known]
    if unknown:
        raise UserError(f"{path}: there is no argument {unknown[0]!r}. `run_glue.py --help` lists the flags.")
    return parser.parse_dict(_with_embedded_defaults(config))


def _from_flags(parser: OneLineParser, argv: list[str]) -> Any:
    *arguments, unknown = parser.parse_args_into_dataclasses(
        argv, return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        more = " A file of arguments is the only argument where it is given." if is_config(unknown[0]) else ""
        raise UserError(f"{unknown_flag(parser, unknown[0])}{more}")
    return tuple(arguments)


def _with_embedded_defaults(config: dict[str, Any]) -> dict[str, Any]:
    return {**EMBEDDED_DEFAULTS, **config} if config.get("embedded") else config


def _choose_faster(data: DataTrainingArguments, training: TrainingArguments, given: set[str]) -> None:
    """Chooses what is faster where nothing else was `given` by name.

    That is fast dropout, and batches of few shapes, each of which a Mac compiles once.
    """
    for name in ("fast_dropout", "skip_unread_tokens"):
        if name not in given:
            setattr(training, name, True)
    if not data.pad_to_max_length and not given & {"train_sampling_strategy", "group_by_length"}:
        training.train_sampling_strategy = "bucket_by_length"
    if not given & {"per_device_eval_batch_size", "per_gpu_eval_batch_size"}:
        size = training.per_device_train_batch_size
        if training.train_sampling_strategy == "bucket_by_length":  # so that its shapes are those of training
            size //= parts_of_batch(size, training.gradient_accumulation_steps)
        training.per_device_eval_batch_size = size
    training.check()


def _complete(model: ModelArguments, data: DataTrainingArguments, training: TrainingArguments) -> None:
    """Fills in what one part of the arguments says about another."""
    if data.embedded:
        data.data_dir = str(EMBEDDED / "data" / TASKS[str(data.task_name)].folder)
        if not (training.do_train or training.do_eval or training.do_predict):
            training.do_train = training.do_eval = True
    elif model.model_name_or_path is None:
        raise UserError(
            "--model_name_or_path is missing: give a model's folder or name, or --embedded for a tiny one."
        )
    if not (training.do_train or training.do_eval or training.do_predict):
        raise UserError("Nothing is asked for: add --do_train, --do_eval or --do_predict.")
