"""Reports show the values that are known to be harmless, and no others."""

import dataclasses
import json
import os
import random
import shlex
import string
import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Optional

import pytest
import torch

from mps_trainer import Trainer, TrainingArguments
from mps_trainer.errors import AnotherProcessFailedError, NonFiniteLossError, explain
from mps_trainer.loop.preemption import script_takes_flags
from mps_trainer.reports.record import NAME, PAGE
from mps_trainer.reports.redaction import NOT_SHOWN, error_text, readable, rules_of, shown
from mps_trainer.reports.run_facts import command_line
from tests.conftest import examples, refusal

# made up, in the form that each service gives its tokens
HF = "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"
GITHUB = "ghp_a8Kd02LmQx7Zv5Rt1Ny4Wb6Cs9Ef3Gh0Jk2p"
GITLAB = "glpat-x7Kd02LmQx7Zv5Rt1Ny4"
SLACK = "xoxb-270418536192-2704185361923-f9Kd02LmQx7Zv5Rt1Ny4Wb6C"
GOOGLE = "AIzaSyD9Kd02LmQx7Zv5Rt1-y4Wb6Cs9Ef3Gh0"
NPM = "npm_a8Kd02LmQx7Zv5Rt1Ny4Wb6Cs9Ef3Gh0Jk2p"
OPENAI = "sk-proj-a8Kd02LmQx7Zv5_t1Ny4Wb6Cs9Ef3Gh0Jk2p"
AWS_ID, AWS = "AKIAQWERTYUIOPASDFGH", "kQ8/zXvB2nMtR+yUpAs4DfGhJ7kLqWe0RtYu3IoP"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
BASE64 = "bXkgc2VjcmV0IHBhc3N3b3JkIGlzIGh1bnRlcjI="
WANDB = "5f3a9c1e7b2d4860a1c3e5f7092b4d6e8f0a1c3d"
UUID = "3f2b8c1d-9a4e-4c7f-8b6d-1e5a7c9d0f2b"
TOKENS = {name: value for name, value in globals().items() if name.isupper() and isinstance(value, str)}
TOKENS = {name: value for name, value in TOKENS.items() if name not in ("NAME", "PAGE", "NOT_SHOWN")}


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Script:
    rank: int = 8
    dropout: Optional[float] = None  # noqa: UP045 - as scripts write it
    layers: list[int] = field(default_factory=list)
    lowercase: bool = False
    size: Size = Size.SMALL
    split: Literal["train", "test"] = "train"
    task: str = field(default="mrpc", metadata={"choices": ["mrpc", "cola"]})
    data_file: str | None = field(default=None, metadata={"aliases": ["-d", "--data"]})
    login: str | None = None
    columns: list[str] = field(default_factory=list)
    anything: Any = None


@dataclass
class Arguments(TrainingArguments):
    max_length: int | None = None
    wandb_auth: str = "none"
    model_init_kwargs: dict[str, Any] | str | None = None
    padding: Literal["left", "right"] = "left"


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """The rules for a script with the dataclasses above, in a folder with the file data.csv."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--rank", "8"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").touch()
    monkeypatch.setattr(sys.modules["__main__"], "Script", Script, raising=False)
    return rules_of(Arguments("out"))


SECRETS = [
    # flags that nobody has declared, with their values in all positions
    "--pwd S3CRET", "--pwd=S3CRET", "--bearer S3CRET", "-p S3CRET", "-pS3CRET", "-uS3CRET:x", "-config=S3CRET",
    "--api-key S3CRET S3CRET", "--header 'Authorization: Bearer S3CRET'", "--header=X-Api-Key:S3CRET",
    "--auth '{\"user\": \"S3CRET\"}'", "--extra.password S3CRET", "--pin 73519", "--pin=73519", "--password -73519",
    "--key 7.3519", "--otp -7.3519e4", "--password true", "--hub_tok S3CRET", "--seeds 73519", "--Seed 73519",
    "--data_url https://me:S3CRET@host/data", "--url https://host/data?sig=S3CRET",
    "--password --S3CRET", "--password -S3CRET", "--password --S3CRET=S3CRET", "--run_name --S3CRET",
    # words without a flag
    "S3CRET", "https://S3CRET@host/data", "s3://bucket/data?X-Amz-Signature=S3CRET#S3CRET", "WANDB_API_KEY=S3CRET",
    "+api_key=S3CRET", "++hub.token=S3CRET", "wandb.secret=S3CRET", "~S3CRET", "73519", "-73519",
    "{\"key\": \"S3CRET\"}",
    "-- S3CRET", "S3CRET=", "S3CRET==", "@S3CRET", "./S3CRET",
    "--lowercase S3CRET", "--bf16 S3CRET", "--seed 1 S3CRET",
    "--run_name mine S3CRET", "--data data.csv S3CRET",
    # declared flags, with values that are no numbers, choices or paths
    "--hub_token S3CRET", "--hub_token=S3CRET", "--push_to_hub_token S3CRET", "--login S3CRET", "--login=73519",
    "--login true", "--columns a S3CRET", "--anything 73519", "--data_file S3CRET", "-d S3CRET", "--wandb_auth S3CRET",
    "--model_init_kwargs '{\"token\": \"S3CRET\"}'", "--model-init-kwargs '{\"token\": 73519}'", "--size S3CRET",
    "--task S3CRET", "--padding S3CRET", "--rank S3CRET", "--seed S3CRET", "--split=S3CRET", "--optim S3CRET",
    # texts of TrainingArguments
    "--run_name https://me:S3CRET@host/S3CRET@host", "--project https://host/a?token=S3CRET",
    "--lr_scheduler_kwargs '{\"url\": \"https://S3CRET@host\"}'",
    *(f"--run_name {token}" for token in TOKENS.values()),
    *(f"--optim_args x= {token}" for token in TOKENS.values()),
    *(f"--hub_model_id me/ {token}" for token in TOKENS.values()),
    *(f"--{token}" for token in TOKENS.values()),
]  # fmt: skip


def words_of(line: str) -> list[str]:
    """Returns the words of a line; a value that ends in x= or me/ is joined with the next one."""
    words: list[str] = []
    for word in shlex.split(line):
        if words and words[-1].endswith(("x=", "me/")):
            words[-1] += word
        else:
            words.append(word)
    return words


@pytest.mark.parametrize("line", SECRETS)
def test_a_secret_is_not_on_the_command_line(rules, line):
    command = command_line(["train.py", *words_of(line)], rules)
    assert command.startswith("python train.py")
    assert not [
        secret for secret in ("S3CRET", "73519", "7.3519", "password true", *TOKENS.values()) if secret in command
    ]
    assert not [token for token in TOKENS.values() if token[6:18] in command]


ORDINARY = [
    "--seed 7", "--seed=7", "--learning_rate 5e-5", "--learning-rate=5e-5", "--max_steps -1", "--weight_decay 0.01",
    "--do_train", "--do_train --do_eval", "--bf16 True", "--no_report", "--use_cpu=false", "--output_dir runs/mine",
    "--optim adamw_torch", "--lr_scheduler_type cosine", "--eval_strategy epoch", "--accelerator mps",
    "--report_to wandb", "--label_names labels start_positions", "--metric_for_best_model eval_f1",
    "--run_name hf_trainer_baseline_seed42", "--hub_model_id me/distilbert-base-uncased-finetuned-sst-2-english",
    "--hub_revision v1.0", "--optim_args momentum=0.9,nesterov=True",
    "--lr_scheduler_kwargs '{\"num_cycles\": 2}'", "--max_length 128", "--padding right", "--rank 16", "--dropout 0.1",
    "--layers 1 2 3", "--lowercase", "--size large", "--split test", "--task cola", "--data_file data.csv",
    "--data-file=data.csv", "--data data.csv", "-d data.csv", "--columns data.csv", "--login data.csv",
]  # fmt: skip


@pytest.mark.parametrize("line", ORDINARY)
def test_an_ordinary_argument_is_on_the_command_line(rules, line):
    assert command_line(["train.py", *words_of(line)], rules) == f"python train.py {line}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-c", "--seed", "7"], "python -c --seed 7"),
        (["-m", "package.train", "--seed", "7", "x"], "python -m package.train --seed 7 ..."),
        (["train.py", "--unknown_flag", "a", "b", "--seed", "7"], "python train.py --... ... ... --seed 7"),
        (["train.py", "a\nb", "-pX", "--a b=c"], "python train.py ... -... --...=..."),
        ([os.path.expanduser("~/train.py")], "python ~/train.py"),
        ([], "python"),
    ],
)
def test_the_command_line_as_it_is_shown(rules, words, expected):
    assert command_line(words, rules) == expected


@pytest.mark.parametrize(
    "before", ["", "token=", "Authorization: Bearer ", "'", "error at ", "(see ", "https://host/"]
)
@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_a_token_is_cut_from_a_text(token, before):
    text = readable(f"It failed: {before}{token}")
    assert text == f"It failed: {before}{NOT_SHOWN}" or text == "It failed: https:" + NOT_SHOWN
    assert readable(f"{token}, {token}'") == f"{NOT_SHOWN}, {NOT_SHOWN}'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:SECRET@host/data", "https://host/data"),
        ("for url: https://me@home:SEC/RET@host/a/b?sig=SECRET#SECRET (404)", "for url: https://host/a/b (404)"),
        ("https://SEC@RET@host:8080/data", "https://host:8080/data"),
        ("'s3://bucket/a?X-Amz-Signature=SECRET'", "'s3://bucket/a'"),
        ("postgres://me:SECRET?#/@host/db", "postgres://host/db"),
        ("copy me:SECRET@host:path", "copy host:path"),
    ],
)
def test_an_address_loses_user_query_and_fragment(text, expected):
    assert readable(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "git+https://github.com/huggingface/transformers@main", "git@github.com:org/repository.git",
        "https://huggingface.co/google-bert/bert-base-cased/tree/main", "runs/hf_trainer_baseline_seed42",
        "meta-llama/Llama-3.1-8B-Instruct", "TheBloke/Mistral-7B-Instruct-v0.2-GGUF", "facebook/wav2vec2-base-960h",
        "Qwen/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4", "distilbert-base-uncased-finetuned-sst-2-english",
        "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl", "AutoModelForSequenceClassification",
        "Wav2Vec2ForSequenceClassification", "DebertaV2ForTokenClassification", "GPTNeoXForCausalLM",
        "aten::_scaled_dot_product_attention_for_mps", "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
        "at 2026-11-24T00:50:29.123456 of 20261124T005029", "run-20261124_005029-3k8x2mzq",
        "checkpoint-1000 of run12/seed42/fold3",
        "The tensor a (128) must match the tensor b (64) at non-singleton dimension 1",
        "loss 12345678901234567890.123",
        "expected mat1 and mat2 to have the same dtype, but got: c10::BFloat16 != float",
        "row 17: key 'text_key' of ['keywords', 'author']", "ValueError: max_new_tokens=20 is above 10",
        "/usr/local/lib/python3.11/site-packages/torch/nn/modules/module.py:1751",
        "per_device_train_batch_size=16, gradient_accumulation_steps=4",
        "safetensors_rust.SafetensorError: HeaderTooLarge",
    ],
)  # fmt: skip
def test_an_ordinary_text_stays(text):
    assert readable(text) == text


LETTERS, LETTERS_AND_DIGITS = string.ascii_letters, string.ascii_letters + string.digits
RANDOM = {
    "a token of an organization": ("api_org_", LETTERS, 34),
    "token_urlsafe(16)": ("", LETTERS_AND_DIGITS + "-_", 22),
    "token_urlsafe(32)": ("", LETTERS_AND_DIGITS + "-_", 43),
    "token_hex(32)": ("", "0123456789abcdef", 64),
    "base32": ("", string.ascii_uppercase + "234567", 32),
    "a token of a bot": ("2704185361:AA", LETTERS_AND_DIGITS + "-_", 33),
    "letters": ("", LETTERS, 40),
    "lower-case letters": ("", string.ascii_lowercase, 32),
    "lower-case letters and digits": ("", string.ascii_lowercase + string.digits, 32),
    "digits": ("", string.digits, 24),
    "letters, digits and signs": ("", LETTERS_AND_DIGITS + "+/", 40),
    "a password in an encoded address": ("x?u=https%3A%2F%2Fme%3A", LETTERS_AND_DIGITS, 12, "%40host%2Fx"),
    "a password in an address that is encoded twice": ("https%253A%252F%252Fme%253A", LETTERS, 12, "%2540host"),
}


@pytest.mark.parametrize("form", RANDOM)
def test_a_random_key_of_any_form_is_cut(form):
    before, letters, length, after = (*RANDOM[form], "")[:4]
    randoms = random.Random(1)
    keys = ["".join(randoms.choice(letters) for _ in range(length)) for _ in range(1000)]
    assert sum(key in readable(f"401 for {before}{key}{after} at step 3") for key in keys) <= 10


@pytest.mark.parametrize(
    "text",
    [
        "DataCollatorForSeq2Seq", "T5ForConditionalGeneration", "AutoModelForSeq2SeqLM", "Seq2SeqTrainingArguments",
        "transformers.DataCollatorForSeq2Seq.__call__", "sentence-transformers/all-MiniLM-L6-v2",
        "openai/clip-vit-base-patch16-224", "mlx-community/Qwen3-0.6B-4bit", "lora_r16_a32_d0.05_lr1e-4",
        "llama-3.2-1b-lr2e-5-bs16-ep3-seed42", "runs/Nov28_17-55-20_studio.local", "model-00001-of-00002.safetensors",
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ],
)  # fmt: skip
def test_a_name_that_explains_a_run_stays(text):
    assert readable(f"It was {text}.") == f"It was {text}."


def raised(work):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the test takes any kind
        work()
    return caught.value


class OwnLookupError(NonFiniteLossError):
    """An error of a script."""


def fail(error):
    raise error


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, OwnLookupError, AnotherProcessFailedError, KeyError])
def test_the_text_of_a_foreign_error_is_left_out(kind):
    text = error_text(raised(lambda: fail(kind("my secret value"))))
    line = fail.__code__.co_firstlineno + 1
    says = f"{kind.__name__} at reports/test_redaction.py:{line}. Its text is in the terminal, not in the report."
    assert text == says


def test_an_error_inside_a_library_is_placed_at_the_line_that_called_it():
    text = error_text(raised(lambda: torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.ones(3).long())))
    assert text.startswith("ValueError at reports/test_redaction.py:")
    assert error_text(ValueError("never raised")).startswith("ValueError. Its text is in the terminal")


def test_explanations_by_this_package_are_shown():
    error = raised(lambda: fail(KeyError("my secret value")))
    explain(error, "Row 17 of the dataset cannot be read.")
    assert error_text(error).endswith("not in the report. Row 17 of the dataset cannot be read.")
    assert error_text(NonFiniteLossError("The loss is nan.")) == "NonFiniteLossError: The loss is nan."


def test_a_path_that_exists_stays_and_the_home_folder_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / GITHUB
    assert readable(f"in {path}.") == f"in {NOT_SHOWN}"
    path.mkdir()
    assert readable(f"in {path}.") == f"in ~/{GITHUB}."


def test_a_value_keeps_its_type(rules):
    values = {
        "seed": 7,
        "bf16": True,
        "layers": (1, 2),
        "lr_scheduler_kwargs": {"a": [1, True, None]},
        "dropout": None,
    }
    found = {name: shown(value, rules[f"--{name}"]) for name, value in values.items()}
    assert found == {**values, "layers": [1, 2]}
    assert shown(TrainingArguments("out").optim, rules["--optim"]) == "adamw_torch_fused"
    assert shown(7, None) == shown({"a": 1}, rules["--model_init_kwargs"]) == NOT_SHOWN


def test_the_tokens_among_the_training_arguments(rules):
    own = {rule[0].dest for rule in rules.values() if rule[1]}
    names = {each.name for each in dataclasses.fields(TrainingArguments)}
    assert names - own == {"hub_token", "push_to_hub_token"}


SECRET = "my secret value"


def test_no_part_of_a_report_has_a_secret(make_model, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--wandb_auth", SECRET, "--max_length", "128", "-p", SECRET])
    arguments = Arguments(
        str(tmp_path / "run"), report=True, max_steps=2, hub_token=SECRET, wandb_auth=SECRET, max_length=128,
        run_name=f"mine {OPENAI}", model_init_kwargs={"token": SECRET},
        project=f"https://{SECRET.replace(' ', '')}@host",
    )  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    model = make_model()
    model.config = type("Config", (), {"_name_or_path": f"https://me:{GITHUB}@host/model?{JWT}"})()

    class Fails(Trainer):
        def training_step(self, *args, **kwargs):
            if self.state.global_step:
                raise ValueError(f"no access for {HF} to https://host/a?sig={SLACK}")
            return super().training_step(*args, **kwargs)

    assert "no access" in refusal(Fails(model, arguments, train_dataset=examples(8)).train, kind=ValueError)
    record, page = ((tmp_path / "run" / name).read_text() for name in (NAME, PAGE))
    for text in (record, page):
        assert not [secret for secret in (SECRET, SECRET.replace(" ", ""), *TOKENS.values()) if secret in text]
        assert str(tmp_path) not in text  # the home folder
    shown_of = json.loads(record)
    assert shown_of["name"] == "mine ..."
    assert shown_of["origin"]["base_model"] == "https://host/model"
    line = Fails.training_step.__code__.co_firstlineno + 2
    assert shown_of["outcome"]["text"] == (
        f"ValueError at reports/test_redaction.py:{line}. Its text is in the terminal, not in the report."
    )
    assert shown_of["arguments"]["max_length"] == 128
    assert shown_of["changed"]["wandb_auth"] == [NOT_SHOWN, NOT_SHOWN]
    assert shown_of["changed"]["project"] == ["https://host", "huggingface"]
    assert "--wandb_auth ... --max_length 128 -... ..." in shown_of["origin"]["command"]
    assert "... stands for values that are not shown." in page
    assert "docs/report.md" in page


def test_a_dataclass_of_the_script_that_was_given_no_flag_is_left_alone(rules, monkeypatch):
    @dataclass
    class Heavy:
        model: str = field(default_factory=lambda: pytest.fail("it was made"))

    monkeypatch.setattr(sys.modules["__main__"], "Heavy", Heavy, raising=False)
    assert "--model" not in rules_of(Arguments("out"))
    assert "--rank" in rules_of(Arguments("out"))


def test_the_parser_that_a_report_loads_is_not_taken_for_the_scripts(report_of, monkeypatch):
    monkeypatch.delitem(sys.modules, "transformers.hf_argparser", raising=False)
    script_takes_flags.cache_clear()
    try:
        report_of()
        monkeypatch.setitem(sys.modules, "transformers.hf_argparser", sys)  # the first report of a process finds it so
        assert not script_takes_flags()
    finally:
        script_takes_flags.cache_clear()
