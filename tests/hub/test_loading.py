"""The libraries' own loading code against the stand-in: by name, by revision, from the cache, and through failures.

Each load is a process of its own, because the libraries read HF_ENDPOINT when they are imported. What the documented
command shows of models as well (test_documented_command.py) is an acceptance test here.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from safetensors import safe_open

from .fixtures import Repositories
from .processes import Finished, run_python
from .repositories import DATASET, MODEL
from .server import StandInHub

LOAD_MODEL = """
import hashlib, json, sys
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
name, revision = sys.argv[1:]
config = AutoConfig.from_pretrained(name, revision=revision, num_labels=2)
tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
model = AutoModelForSequenceClassification.from_pretrained(name, revision=revision, config=config)
embeddings = model.bert.embeddings.word_embeddings.weight.detach().numpy()
print(json.dumps({
    "kind": type(model).__name__,
    "embeddings": hashlib.sha256(embeddings.tobytes()).hexdigest(),
    "tokens": tokenizer.tokenize("She said : Yes ."),
}))
"""

LOAD_DATASET = """
import json, sys
from datasets import load_dataset
splits = load_dataset(*sys.argv[1:3], revision=sys.argv[3])
print(json.dumps({name: split.to_list() for name, split in splits.items()}))
print(splits["train"].features["label"].names, file=sys.stderr)
"""


def load_model(env: dict[str, str], name: str = MODEL, revision: str = "main") -> Finished:
    return run_python("-c", LOAD_MODEL, name, revision, env=env)


def load_dataset(env: dict[str, str], config: str = "mrpc", name: str = DATASET, revision: str = "main") -> Finished:
    return run_python("-c", LOAD_DATASET, name, config, revision, env=env)


def answer(process: Finished) -> Any:
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def embeddings(folder) -> str:
    with safe_open(folder / "model.safetensors", framework="numpy") as weights:
        return hashlib.sha256(weights.get_tensor("bert.embeddings.word_embeddings.weight").tobytes()).hexdigest()


@pytest.mark.acceptance
def test_a_model_loads_by_name_and_a_revision_has_weights_of_its_own(
    hub: StandInHub, hub_env: dict[str, str], repositories: Repositories
) -> None:
    main, v1 = answer(load_model(hub_env)), answer(load_model(hub_env, revision="v1"))
    assert main["kind"] == v1["kind"] == "BertForSequenceClassification"
    assert main["embeddings"] == embeddings(repositories.model)
    assert v1["embeddings"] == embeddings(repositories.model_v1)
    assert main["embeddings"] != v1["embeddings"]


@pytest.mark.acceptance
def test_a_second_load_downloads_nothing_and_a_third_needs_no_hub(
    hub: StandInHub, hub_env: dict[str, str], repositories: Repositories
) -> None:
    first = answer(load_model(hub_env)), answer(load_dataset(hub_env))
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} < set(hub.downloads())
    assert sum(name.endswith(".parquet") for name in hub.downloads()) == 3
    assert len(hub.downloads()) == len(set(hub.downloads()))

    hub.forget_requests()
    assert (answer(load_model(hub_env)), answer(load_dataset(hub_env))) == first
    assert hub.requests, "the second load asked whether there is something newer"
    assert hub.downloads() == []

    hub.stop()
    offline = {**hub_env, "HF_HUB_OFFLINE": "1"}
    assert (answer(load_model(offline)), answer(load_dataset(offline))) == first


def test_a_data_set_loads_by_name_with_the_rows_of_the_config_asked_for(
    hub: StandInHub, hub_env: dict[str, str], repositories: Repositories
) -> None:
    process = load_dataset(hub_env)
    assert answer(process) == repositories.mrpc
    assert process.messages[-1] == "['not_equivalent', 'equivalent']"
    assert {path.split("-")[0] for path in hub.downloads() if path.endswith(".parquet")} == {
        "train",
        "validation",
        "test",
    }
    assert not any("cola/train" in request.path for request in hub.requests)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"name": "google-bert/nothing"}, "google-bert/nothing is not a local folder and is not a valid model"),
        ({"revision": "v9"}, "v9 is not a valid git identifier"),
    ],
)
def test_a_missing_model_or_revision_gives_the_librarys_own_error(
    hub: StandInHub, hub_env: dict[str, str], asked: dict[str, str], message: str
) -> None:
    process = load_model(hub_env, **asked)
    assert process.returncode == 1
    assert f"OSError: {message}" in process.stderr
    assert process.seconds < 60


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"name": "nyu-mll/nothing"}, "Dataset 'nyu-mll/nothing' doesn't exist on the Hub"),
        ({"revision": "v9"}, "Revision 'v9' doesn't exist for dataset 'nyu-mll/glue'"),
        ({"config": "nothing"}, "BuilderConfig 'nothing' not found. Available: ['cola', 'mrpc']"),
    ],
)
def test_a_missing_data_set_revision_or_config_gives_the_librarys_own_error(
    hub: StandInHub, hub_env: dict[str, str], asked: dict[str, str], message: str
) -> None:
    process = load_dataset(hub_env, **asked)
    assert process.returncode == 1
    assert message in process.stderr


def test_a_file_that_fails_while_it_is_sent_is_not_asked_for_again_and_leaves_the_cache_sound(
    hub: StandInHub, hub_env: dict[str, str], repositories: Repositories
) -> None:
    hub.fail_with(500, path_contains="validation-", method="GET")
    process = load_dataset(hub_env)
    assert process.returncode == 1
    assert "500 Internal Server Error" in process.stderr
    assert [request.status for request in hub.requests].count(500) == 1
    hub.recover()
    assert answer(load_dataset(hub_env)) == repositories.mrpc


@pytest.mark.acceptance
def test_weights_that_fail_while_they_are_sent_leave_the_cache_sound(
    hub: StandInHub, hub_env: dict[str, str], repositories: Repositories
) -> None:
    hub.fail_with(500, path_contains="model.safetensors", method="GET")
    process = load_model(hub_env)
    assert process.returncode == 1
    assert "There was a specific connection error when trying to load" in process.stderr
    hub.recover()
    assert answer(load_model(hub_env))["embeddings"] == embeddings(repositories.model)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("load", "attempts"),
    [pytest.param(load_model, 7, id="model"), pytest.param(load_dataset, 7, id="data set")],
)
def test_a_hub_that_is_down_is_given_up_after_half_a_minute(
    hub: StandInHub, hub_env: dict[str, str], load, attempts: int
) -> None:
    """Measured with huggingface_hub 2.4: one quick try, then six with 1 + 2 + 4 + 8 + 8 = 23 s between them."""
    hub.fail_with(500)
    process = load(hub_env)
    assert process.returncode == 1
    assert "An error happened while trying to locate the file on the Hub" in process.stderr
    files = [request for request in hub.requests if "/resolve/" in request.path]
    assert {request.method for request in files} == {"HEAD"}
    assert len(files) <= attempts
    assert process.seconds < 60

    hub.recover()
    answer(load(hub_env))


@pytest.mark.integration
def test_a_hub_that_comes_back_while_the_client_retries_costs_only_the_wait(
    hub: StandInHub, hub_env: dict[str, str], repositories: Repositories
) -> None:
    hub.fail_with(503, times=3, path_contains="model.safetensors")
    assert answer(load_model(hub_env))["embeddings"] == embeddings(repositories.model)
