"""The examples for TRL and sentence-transformers learn from embedded data, resume, and refuse in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import HUNG_AFTER

from ..docs.test_commands import commands
from .test_libraries import ROOT, missing

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}: pip install -e '.[libraries]'"),
]

SCRIPT = Path(__file__).with_name("run_examples.py")
SFT, BI_ENCODER = "run_sft.py", "train_bi_encoder.py"
PAGES = ["docs/language-models.md", "docs/export.md", "docs/libraries.md"]
PAGES += ["docs/peft.md"] if find_spec("bitsandbytes") else []
PARSERS = {SFT: "sft_arguments", BI_ENCODER: "bi_encoder_arguments"}
QUIET = ["--disable_tqdm", "True", "--use_cpu"]


def run(tmp_path: Path, *wanted: list[str]) -> list[dict[str, Any]]:
    """Runs the commands in one process, and returns status, stdout and stderr of each."""
    given, results = tmp_path / "commands.json", tmp_path / "results.json"
    given.write_text(json.dumps(wanted))
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, str(SCRIPT), str(given), str(results)],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HUNG_AFTER,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(results.read_text())


def results_in(folder: Path) -> dict[str, float]:
    return json.loads((folder / "all_results.json").read_text())


# Words that are refused, and a part of the message.
REFUSED = [
    (["--no_such_flag", "3"], "'--no_such_flag'"),
    (["--learning_rate", "abc"], "'abc'"),
    (["--model_name_or_path", "/no/model"], "/no/model is not a folder"),
    (["--dataset_name", "x.jsonl"], "--model_name_or_path is missing"),
    (["--model_name_or_path", "m/m", "--dataset_name", "/no/file.jsonl"], "/no/file.jsonl does not exist"),
    (["--embedded", "--dataset_name", "a/b"], "two sources"),
    (["--resume_from_checkpoint", "/no/checkpoint"], "no such folder"),
]

QUESTION, ANSWER = {"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "On the wall."}
CHAT = {"messages": [QUESTION, ANSWER]}
# Second lines of a file of JSON lines that are refused, and a part of the message.
WRONG_LINES = [
    ('{"messages": [', "line 2: this is no JSON"),
    ("7", "line 2: this is no object"),
    ('{"text": "a"}', "line 2: there is no `messages`"),
    ('{"messages": "Where?"}', "line 2: `messages` is no list"),
    (json.dumps({"messages": [QUESTION, {"role": "bot", "content": "a"}]}), "'bot'"),
    ('{"messages": [{"content": "a"}]}', "no `role`"),
    ('{"messages": [{"role": "user"}]}', "no `content`"),
    (json.dumps({"messages": [QUESTION]}), "no message is the assistant's"),
]


def write_lines(path: Path, *lines: str | dict[str, Any]) -> str:
    """Writes lines, dictionaries as JSON, and returns the path as text."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def wrong_files(tmp_path: Path) -> list[tuple[list[str], str]]:
    """Returns words that name a file with something wrong in it, and a part of the message."""
    cases = []
    for number, (line, says) in enumerate(WRONG_LINES):
        cases.append((write_lines(tmp_path / f"wrong-{number}.jsonl", CHAT, line), says))
    (tmp_path / "utf16.jsonl").write_text(json.dumps(CHAT), encoding="utf-16")
    cases += [
        (write_lines(tmp_path / "empty.jsonl"), "empty.jsonl has no rows"),
        (write_lines(tmp_path / "one.jsonl", CHAT), "one.jsonl has one row"),
        (write_lines(tmp_path / "columns.json", {"a": 1}, {"a": 2}), "columns.json has the columns a"),
        (write_lines(tmp_path / "notes.md", "a"), "ends in none of"),
        (str(tmp_path / "utf16.jsonl"), "UTF-8"),
    ]
    return [(["--model_name_or_path", str(tmp_path), "--dataset_name", file], says) for file, says in cases]


# This is one test, so that the libraries are imported once.
def test_examples_learn_resume_and_refuse_in_one_line(tmp_path, subtests):
    refused = [(script, *case) for script in (SFT, BI_ENCODER) for case in REFUSED]
    refused += [(SFT, *case) for case in wrong_files(tmp_path)]
    refused += [
        (SFT, ["--config"], "--config: expected the name"),
        (SFT, ["--config", "/no.yaml"], "/no.yaml cannot be read"),
        (SFT, ["--lora_target_modules", "nothing"], "No modules were targeted"),
        (SFT, ["--use_peft", "False", "--merge"], "--merge needs an adapter"),
        (SFT, ["--load_in_4bit"], "--load_in_4bit is for a pretrained model"),
        (SFT, ["--model_name_or_path", "m/m", "--load_in_4bit", "--use_peft", "False"], "--load_in_4bit freezes"),
    ]
    of_pages = [words for script in (SFT, BI_ENCODER) for _, words in commands(script) if words[1:]]
    assert len(of_pages) >= 6
    shed, pairs = [SFT, *QUIET, "--max_steps", "240"], [BI_ENCODER, *QUIET, "--max_steps", "80"]
    saving = ["--save_strategy", "steps", "--save_steps", "160", "--save_total_limit", "9"]
    chats, again, embeddings = (tmp_path / name for name in ("chats", "again", "embeddings"))
    learned_shed, own = own_model_commands(tmp_path, chats / "merged")
    results = run(
        tmp_path,
        *([script, *words] for script, words, _ in refused),
        *([PARSERS[Path(words[0]).name], *words[1:]] for words in of_pages),
        *([page] for page in PAGES),
        [*shed, *saving, "--merge", "--output_dir", str(chats)],
        [*shed, *saving, "--output_dir", str(again), "--resume_from_checkpoint", str(chats / "checkpoint-160")],
        [*pairs, "--output_dir", str(embeddings)],
        *own.values(),
    )
    for (script, words, says), result in zip(refused, results, strict=False):
        with subtests.test(f"{script} {' '.join(words)}"):
            lines = [line for line in result["err"].splitlines() if "Warning" not in line and "warn(" not in line]
            assert result["status"] == 2
            assert lines[-1].startswith(f"{script}: error: ")
            assert says in lines[-1]
            assert "Traceback" not in result["err"]
    with subtests.test("nothing is written"):
        assert not (tmp_path / "trainer_output").exists()
    with_own = dict(zip(own, results[-len(own) :], strict=True))
    del results[-len(own) :]
    for words, result in zip([*of_pages, *([page] for page in PAGES)], results[len(refused) : -3], strict=True):
        with subtests.test(" ".join(words)):
            assert result["status"] == 0, result["err"]
    ran = results[-3:]
    assert [each["status"] for each in ran] == [0, 0, 0], [each["err"][-1000:] for each in ran]
    with subtests.test("SFT learns"):
        learned = results_in(chats)
        # A guess among all 330 tokens has a loss of 5.8, and a guess among the answers for other tools above 1.
        assert learned["eval_loss_before"] > 5
        assert learned["eval_loss"] < 0.5
        said = ran[0]["out"].partition("Question: Where is the saw?\n")[2].split("\n")
        assert said[0].startswith("Answer before: ")
        assert LEARNED not in said[0]
        assert said[-3] == f"Answer after: {LEARNED}"
        assert said[-2].endswith(f" is in {chats / 'merged'}.")
    with subtests.test("LoRA's weights alone are saved"):
        assert (chats / "adapter_model.safetensors").exists()
        assert not (chats / "model.safetensors").exists()
    with subtests.test("a resumed run is the run that was never stopped"):
        adapter = "adapter_model.safetensors"
        assert not (again / "checkpoint-160").exists()
        assert (again / adapter).read_bytes() == (chats / adapter).read_bytes()
    with subtests.test("embeddings learn"):
        learned = results_in(embeddings)
        name = "eval_held_out_cosine_accuracy@1"
        assert learned[f"{name}_before"] < 0.05  # one of 200 by chance
        assert learned[name] > 0.9
        assert (embeddings / "modules.json").exists()
    check_own_model(with_own, learned_shed, subtests)


LEARNED = "The saw is on the left wall."
UNMARKED = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"


def own_model_commands(tmp_path: Path, model: Path) -> tuple[Path, dict[str, list[str]]]:
    """Returns the folder of outputs, and commands that train the merged model further, on a file of chats."""
    answers = ["On the left wall.", "Behind the door, to the left of the window, where it always was."]
    rows = [{"messages": [QUESTION, {"role": "assistant", "content": each}] * 2} for each in answers * 8]
    file, outputs = write_lines(tmp_path / "own.jsonl", *rows), tmp_path / "own"
    texts = write_lines(tmp_path / "texts.jsonl", *({"text": "The saw is on the left wall. " * 4} for _ in range(8)))
    unmarked, plain = str(tmp_path / "unmarked"), str(tmp_path / "plain")
    # All that is held back is one batch: the loss of an evaluation is the mean over its batches.
    short = [*QUIET, "--max_steps", "2", "--per_device_eval_batch_size", "16", "--max_new_tokens", "20"]
    short += ["--prompt", "Where is the saw?"]

    def train(name: str, *words: str, model: str = str(model), data: str = file) -> list[str]:
        return [SFT, "--model_name_or_path", model, "--dataset_name", data, *short, *words,
                "--output_dir", str(outputs / name)]  # fmt: skip

    return outputs, {
        "chats": train("chats", "--merge"),
        "every token": train("every token", "--assistant_only_loss", "False"),
        "packed": train("packed", "--packing", "--max_length", "128"),
        "all weights": train("all weights", "--use_peft", "False"),
        "half precision": train("half precision", "--bf16", "True", "--merge"),
        "4 bits": train("4 bits", "--load_in_4bit", "--merge"),
        "text": train("text", data=texts),
        "too short": train("too short", "--max_length", "4"),
        "copy unmarked": ["copy_model", str(model), unmarked, UNMARKED],
        "unmarked": train("unmarked", model=unmarked),
        "marks asked for": train("marks asked for", "--assistant_only_loss", model=unmarked),
        "copy plain": ["copy_model", str(model), plain, ""],
        "no template": train("no template", model=plain),
    }


def check_own_model(ran: dict[str, Any], outputs: Path, subtests: pytest.Subtests) -> None:
    refusals = {
        "too short": "--max_length 4",
        "marks asked for": "does not mark what the assistant says",
        "no template": "no chat template",
    }
    if find_spec("bitsandbytes") is None:
        refusals["4 bits"] = "--load_in_4bit needs bitsandbytes"
    for name, result in ran.items():
        with subtests.test(name):
            assert result["status"] == (2 if name in refusals else 0), result["err"][-1000:]
            assert refusals.get(name, "") in result["err"]
            assert not (outputs / name).exists() or name not in refusals
    with subtests.test("the merged model is the trained one, without an adapter"):
        assert f"Answer before: {LEARNED}\n" in ran["chats"]["out"]
        config = json.loads((outputs / "chats" / "merged" / "config.json").read_text())
        assert config["use_cache"]
        assert config["dtype"] == "float32"
        assert json.loads((outputs / "half precision/merged/config.json").read_text())["dtype"] == "bfloat16"
        assert not (outputs / "chats" / "merged" / "adapter_config.json").exists()
        if "4 bits" not in refusals:
            config = json.loads((outputs / "4 bits" / "merged" / "config.json").read_text())
            assert config["dtype"] == "float32"  # as the model's files have it
            assert "quantization_config" not in config
    with subtests.test("every linear layer gets an adapter, and batches are of few lengths"):
        layers = json.loads((outputs / "chats" / "adapter_config.json").read_text())["target_modules"]
        assert {name.rpartition(".")[2] for name in layers} == {
            *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        }
        record = json.loads((outputs / "chats" / "run_record.json").read_text())
        assert record["arguments"]["train_sampling_strategy"] == "bucket_by_length"
        assert record["arguments"]["learning_rate"] == 2e-4
        assert record["arguments"]["gradient_checkpointing"]
        record = json.loads((outputs / "all weights" / "run_record.json").read_text())
        assert record["arguments"]["learning_rate"] == 2e-5
    with subtests.test("the loss counts what the assistant says, unless all tokens are asked for"):
        losses = {name: results_in(outputs / name)["eval_loss_before"] for name in ("chats", "every token", "packed")}
        assert losses["every token"] != pytest.approx(losses["chats"], rel=0.05)
        assert losses["packed"] == pytest.approx(losses["chats"], rel=1e-4)
    with subtests.test("a template without marks is named"):
        assert "does not mark what the assistant says" in ran["unmarked"]["out"]
        assert "The loss counts questions as well." in ran["unmarked"]["out"]
