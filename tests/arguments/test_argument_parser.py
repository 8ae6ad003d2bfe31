"""HfArgumentParser turns the arguments into flags, and reads them from a dictionary, a JSON and a YAML file."""

import dataclasses
import json
import shlex
from dataclasses import dataclass, field

import pytest
from transformers import HfArgumentParser

from mps_trainer import TrainingArguments


@dataclass
class DataFields:
    task_name: str | None = field(default=None)
    max_length: int = field(default=128)


@dataclass
class Extended(TrainingArguments):
    extra: int = field(default=1, metadata={"help": "One more."})
    learning_rate: float = field(default=1e-3, metadata={"help": "Another default."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.doubled = 2 * self.extra


def parse(*flags: str, kind: type = TrainingArguments):
    return HfArgumentParser(kind).parse_args_into_dataclasses(list(flags))[0]


COMMAND_LINE = """
--task_name mrpc --output-dir run --learning_rate 2e-5 --num_train_epochs 1 --do_train --do_eval False
--eval_strategy steps --logging_steps 10 --save-steps 0.5 --warmup_steps 0.1 --no_remove_unused_columns
--label_names start end --save_total_limit 2 --devices 1 --disable_tqdm true --gradient_checkpointing
--lr_scheduler_kwargs '{"num_cycles": 2}' --no_report --liger_kernel_config '{"rope": false}'
"""


def test_the_command_line_and_an_empty_one():
    parser = HfArgumentParser((DataFields, TrainingArguments))
    data, args = parser.parse_args_into_dataclasses(shlex.split(COMMAND_LINE))
    assert (data.task_name, data.max_length) == ("mrpc", 128)
    expected = {
        "output_dir": "run",
        "learning_rate": 2e-5,
        "num_train_epochs": 1.0,
        "do_train": True,
        "do_eval": True,  # because of the strategy
        "eval_strategy": "steps",
        "logging_steps": 10,
        "eval_steps": 10,
        "save_steps": 0.5,
        "warmup_steps": 0.1,
        "remove_unused_columns": False,
        "label_names": ["start", "end"],
        "save_total_limit": 2,
        "devices": "1",
        "disable_tqdm": True,
        "gradient_checkpointing": True,
        "activation_checkpointing": True,
        "lr_scheduler_kwargs": {"num_cycles": 2},
        "liger_kernel_config": {"rope": False},
        "report": False,
    }
    assert {name: getattr(args, name) for name in expected} == expected
    assert parse() == TrainingArguments()


SETTINGS = {
    "output_dir": "run",
    "learning_rate": 2e-5,
    "eval_strategy": "no",
    "label_names": ["labels"],
    "lr_scheduler_kwargs": {"num_cycles": 2},
    "bf16": True,
    "save_total_limit": None,
}
YAML = """
output_dir: run
learning_rate: 2e-5  # text, as YAML 1.1 has it
eval_strategy: no  # false
label_names: [labels]
lr_scheduler_kwargs: {num_cycles: 2}
bf16: yes
save_total_limit:
"""


def test_a_dictionary_and_files_give_the_same_arguments_also_if_they_were_written_from_a_run(tmp_path):
    (tmp_path / "args.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "args.yaml").write_text(YAML)
    parser = HfArgumentParser((DataFields, TrainingArguments))
    expected = TrainingArguments(**SETTINGS)
    assert parser.parse_dict(SETTINGS)[1] == expected
    assert parser.parse_json_file(str(tmp_path / "args.json"))[1] == expected
    assert parser.parse_yaml_file(str(tmp_path / "args.yaml"))[1] == expected
    args = parse("--eval_strategy", "epoch", "--report_to", "tensorboard", "--gradient_checkpointing")
    (tmp_path / "args.json").write_text(args.to_json_string())
    assert HfArgumentParser(TrainingArguments).parse_json_file(str(tmp_path / "args.json"))[0] == args


def test_a_subclass_with_more_fields_and_a_post_init_is_parsed():
    args = parse("--extra", "3", "--save_strategy", "no", kind=Extended)
    assert (args.extra, args.doubled, args.learning_rate, args.save_strategy) == (3, 6, 1e-3, "no")
    assert (args.to_dict()["extra"], dataclasses.replace(args, extra=4).doubled) == (3, 8)
    assert "extra=3" in repr(args)


def test_help_shows_every_field_with_its_text(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for option in dataclasses.fields(TrainingArguments):
        assert f" --{option.name}" in shown
        assert option.metadata["help"].strip()
        assert " ".join(option.metadata["help"].split()) in shown, option.name


@pytest.mark.parametrize("name", ["eval_strategy", "optim", "train_sampling_strategy", "log_level", "ddp_backend"])
def test_a_wrong_choice_is_one_line_of_argparse_and_exit_2(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(f"--{name}", "bogus")
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].split(": ", 1)[1].startswith("error: argument --" + name)
