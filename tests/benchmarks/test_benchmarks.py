"""Each benchmark in its quick form, from the command line to the JSON."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from benchmarks import attention_formats, environment, glue, learning, libraries, startup
from benchmarks.benchmark import Options
from benchmarks.rounds import alternate, middles
from mps_trainer.devices.facts import cpu_bfloat16
from tests.conftest import on_device

from .conftest import ROOT

REAL = Path(os.environ.get("MPS_TRAINER_REAL_DATA", ROOT.parent / "shared"))


def check(result, name, entries, figures):
    """The fields that every result has, and those who were measured, each with its figures."""
    assert result["name"] == name
    assert result["quick"] is True
    assert result["date"].endswith("+00:00")
    assert result["command"].startswith(f"python -m benchmarks {name} --quick")
    assert {"python", "torch", "mps_trainer"} <= result["versions"].keys()
    assert {"processor", "cores", "threads", "memory_gib"} <= result["machine"].keys()
    assert result["machine"]["OMP_NUM_THREADS"] == "1"
    assert len(result["rounds"]) == 1
    assert set(result["rounds"][0]) == set(result["middles"]) == set(result["labels"]) == set(entries)
    for row in result["middles"].values():
        assert figures <= row.keys()


@pytest.mark.parametrize(
    ("words", "recorded"),
    [("mrpc --data /home/me/data/", "mrpc --data data"), ("mrpc --data=/me/data --quick", "mrpc --data=data --quick")],
)
def test_the_command_has_names_of_folders_alone(monkeypatch, words, recorded):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words.split()])
    monkeypatch.setattr(environment, "measure_in_process", lambda name: {})
    assert environment.describe()["command"] == f"python -m benchmarks {recorded}"


STEPS = {"milliseconds_per_step"}
OF_LIBRARIES = {"sft_milliseconds", "sft_lora_milliseconds", "mnrl_milliseconds"}
OF_LANGUAGE = {
    f"{way}_{name}" for way in ("full", "lora") for name in ("mib", "milliseconds", "operators", "blocking_reads")
}


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("name", "others", "figures", "needed"),
    [
        ("overhead", "bare", STEPS, []),
        ("distributed", "bare", STEPS, []),
        ("libraries", "transformers", OF_LIBRARIES, ["trl", "sentence_transformers"]),
        ("language", "transformers", OF_LANGUAGE, ["peft"]),
    ],
)
def test_ours_learns_what_others_learn(benchmarks, name, others, figures, needed):
    for package in needed:
        pytest.importorskip(package)
    result, page = benchmarks(name, *(["--peers", "bare", "ours"] if others == "bare" else []))
    check(result, name, {others, "ours"}, figures)
    ours, theirs = (result["rounds"][0][each]["learned"] for each in ("ours", others))
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-4)
    assert "| mps_trainer |" in page


def test_simulated(benchmarks_here, built):
    result, _ = benchmarks_here("simulated", "--peers", "bare", "ours")
    check(result, "simulated", {"bare", "ours"}, {"blocking_reads", "host_to_device", "operators"})
    bare, ours = (result["rounds"][0][name] for name in ("bare", "ours"))
    assert 0 < bare["loop_operators"] < bare["operators"]
    assert ours["operators"] - ours["loop_operators"] == bare["operators"] - bare["loop_operators"]  # the model's own
    assert [target["met"] for target in result["targets"]] == [True, True, True]
    assert ours["learned"]["steps"] == bare["learned"]["steps"] == result["settings"]["steps"]
    assert ours["learned"]["loss"] == pytest.approx(bare["learned"]["loss"], rel=1e-4)


def test_memory(benchmarks_here, built):
    result, _ = benchmarks_here("memory", "--peers", "ours")
    check(result, "memory", {"ours-cpu", "ours-mps"}, {"mib_settled", "mib_end", "growth_percent"})
    for row in result["rounds"][0].values():
        assert row["growth_percent"] == pytest.approx(100 * (row["mib_end"] / row["mib_settled"] - 1))
        assert row["series"][-1] == [result["settings"]["steps"] - 1, row["mib_end"]]


@pytest.mark.acceptance
@pytest.mark.skipif(not (REAL / "glue" / "MRPC").is_dir(), reason=f"no real MRPC in {REAL}")
def test_mrpc(benchmarks):
    result, _ = benchmarks("mrpc", "--peers", "ours", "--data", str(REAL))
    figures = {"seconds", "first_step_seconds", "padding", "peak_rss_mib", "real_share_of_peak"}
    check(result, "mrpc", {"ours"} if cpu_bfloat16() is False else {"ours", "ours-bf16"}, figures)
    row = result["rounds"][0]["ours"]
    assert row["steps"] == 4  # 32 pairs, 8 a step
    assert 0 < row["first_step_seconds"] < row["seconds"]
    assert 0 < row["real_tokens"] < row["padded_tokens"]
    assert 0 < row["learned"]["dev accuracy"] < 1


def test_learning_takes_another_seed_in_each_round(monkeypatch, tmp_path):
    for folder in ("glue/MRPC", "models/minilm-l6"):
        (tmp_path / folder).mkdir(parents=True)
    seeds = []

    def run(script, arguments):
        seeds.append((script, arguments[arguments.index("--seed") + 1]))
        return {"seconds": 1.0, "learned": {"dev accuracy": 0.5 + len(seeds) / 10}}

    monkeypatch.setattr(glue, "run", run)
    plan = learning.BENCHMARK.plan(Options(("ours", "transformers"), str(tmp_path)))
    rounds, _ = alternate(plan.entries, 3)
    assert sorted(seeds) == sorted((script, seed) for script in (glue.OURS, glue.THEIRS) for seed in "123")
    means = middles(rounds, learning.BENCHMARK.figures)
    assert means["ours"]["dev_accuracy"] == pytest.approx((0.6 + 0.9 + 1.0) / 3)  # second in the second round


@pytest.mark.acceptance
def test_a_watched_script_is_counted(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arguments = [word for word in startup.AS_EMBEDDED if word != "--dynamic"]
    measured = glue.run(glue.THEIRS, [*arguments, "--max_steps", "3"])
    assert measured["steps"] == 3
    assert measured["distinct_shapes"] == 1
    assert measured["padded_tokens"] == 3 * 32 * 64
    assert 0 < measured["real_tokens"] < measured["padded_tokens"]

    assert measured["first_step_seconds"] + measured["training_seconds"] < measured["seconds"]
    config = json.loads((startup.EMBEDDED / "config.json").read_text())
    looked_up = config["vocab_size"] + config["max_position_embeddings"] + config["type_vocab_size"]
    model = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(str(startup.EMBEDDED)))
    assert measured["parameters"] == model.num_parameters() - looked_up * config["hidden_size"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["memory", "--peers", "transformers"], "transformers"),
        (["libraries"], "Not installed: no_such_library. Run: pip install -e '.[libraries]'"),
        (["mrpc", "--data", "nowhere"], "--data"),
        (["learning", "--data", "nowhere"], "--data"),
    ],
)
def test_what_cannot_be_measured_is_skipped_with_what_to_do(benchmarks_here, monkeypatch, arguments, said):
    monkeypatch.setattr(libraries, "NEEDED", ("no_such_library",))
    result, page = benchmarks_here(*arguments)
    assert said in result["skipped"]
    assert f"Skipped: {result['skipped']}" in page


def test_attention_with_scores_in_16_bits_is_less_exact(built):
    with on_device("mps"):
        found = {
            name: attention_formats.measure(name, torch.bfloat16, 2.0, 256) for name in attention_formats.VARIANTS
        }
    exact, coarse = found["float32, as it is"], found["all in 16 bits"]
    for name in attention_formats.NAMES:
        assert exact[name] == pytest.approx(1, abs=0.02)  # as torch's own
        assert coarse[name] > 3
    assert coarse["bytes"] < 0.7 * exact["bytes"]


def test_the_fused_kernel_moves_fewer_bytes(built):
    with on_device("mps"):
        blocks, fused = (attention_formats.measure_chunked(each, 512) for each in (False, True))
    assert fused["forward operators"] == 2
    assert all(fused[name] < blocks[name] for name in blocks)
