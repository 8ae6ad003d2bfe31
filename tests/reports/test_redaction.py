"""Reports show no secrets."""

import dataclasses

import pytest

from mps_trainer import Trainer, TrainingArguments
from mps_trainer.reports.description import secrets_of, shown
from mps_trainer.reports.record import NAME
from mps_trainer.reports.redaction import HIDDEN, is_secret, without_secrets
from tests.conftest import examples


@pytest.mark.parametrize("prefix", ["hf_", "ghp_", "github_pat_", "sk-"])
def test_tokens_of_known_services_are_hidden_anywhere(prefix):
    assert without_secrets(f"a:{prefix}11ABCDEFG0abcdefghij_klmnop") == f"a:{HIDDEN}"


@pytest.mark.parametrize(
    ("text", "secrets", "expected"),
    [
        ("a mine of mines", ["mine"], f"a {HIDDEN} of mines"),
        ("--tok=mine", ["mine"], f"--tok={HIDDEN}"),
        ("a -b c", ["-b"], f"a {HIDDEN} c"),
        ("prefix_longsecret_", ["longsecret"], f"prefix_{HIDDEN}_"),
        ("a.b axb", ["a.b"], f"{HIDDEN} axb"),
        ("text", [""], "text"),
    ],
)
def test_a_known_secret_is_hidden(text, secrets, expected):
    assert without_secrets(text, secrets) == expected


def test_the_secrets_among_the_training_arguments():
    names = [field.name for field in dataclasses.fields(TrainingArguments)]
    assert {name for name in names if is_secret(name)} == {"hub_token", "push_to_hub_token"}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("hub_token", "SECRET", HIDDEN),
        ("wandb_auth", "SECRET", HIDDEN),
        ("access_keys", ["SECRET", 3, None], [HIDDEN, 3, None]),
        ("credentials", {"user": "SECRET"}, {"user": HIDDEN}),
        ("config", {"api_key": "SECRET", "eos_token_id": 2}, {"api_key": HIDDEN, "eos_token_id": 2}),
        ("source", "https://me:SECRET@host/data", f"https://{HIDDEN}@host/data"),
        ("monkey_patch", True, True),
        ("hub_token", None, None),
        ("tokenizer_name", "bert", "bert"),
    ],
)
def test_an_argument_is_shown_without_secrets(name, value, expected):
    assert shown(name, value) == expected


@dataclasses.dataclass
class WithSecret(TrainingArguments):
    wandb_auth: str = "none"


def test_secrets_of_a_subclass_are_in_no_part_of_a_report(make_model, tmp_path):
    arguments = WithSecret(str(tmp_path / "run"), report=True, max_steps=1, wandb_auth="mysecretvalue")
    assert secrets_of(arguments) == ["mysecretvalue"]
    Trainer(make_model(), arguments, train_dataset=examples(8)).train()
    assert "mysecretvalue" not in (tmp_path / "run" / NAME).read_text()
