"""The script from start to finish."""

import csv
import json
import os
import subprocess
import sys

import pytest
from glue_tasks import TASKS

from .conftest import EMBEDDED, EXAMPLE, ROOT

pytestmark = pytest.mark.integration  # whole scripts

METRICS = {
    "cola": {"matthews_correlation"},
    "stsb": {"pearson", "spearmanr", "combined_score"},
    "mrpc": {"accuracy", "f1", "combined_score"},
    "qqp": {"accuracy", "f1", "combined_score"},
}
SHORT = ("--max_steps", 4, "--max_train_samples", 64, "--max_eval_samples", 32, "--max_predict_samples", 16)


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("task", TASKS)
def test_every_task_trains_evaluates_and_predicts(run_glue, out, task):
    status, _, errors = run_glue("--task_name", task, "--embedded", "--do_train", "--do_eval", "--do_predict", *SHORT)
    assert status == 0, errors
    assert "\r" not in errors  # nobody sees bars here
    results = read(out / "all_results.json")
    expected = {f"eval_{name}" for name in METRICS.get(task, {"accuracy"})} | {"eval_loss", "eval_samples"}
    if task == "mnli":
        expected |= {f"{name}_mm" for name in expected}
    assert expected <= set(results)
    assert {"train_loss", "train_samples", "train_runtime", "epoch", "total_flos"} <= set(results)
    assert (results["train_samples"], results["eval_samples"]) == (64, 32)
    assert results == {**read(out / "train_results.json"), **read(out / "eval_results.json")}
    assert read(out / "trainer_state.json")["global_step"] == 4
    card = (out / "README.md").read_text()
    assert f"made-up sample for GLUE {TASKS[task].folder}" in card
    assert "| training | 64 | made-up sample" in card
    assert "- Device: cpu. " in card
    assert "- Loss: " in card
    for name in [task, "mnli-mm"] if task == "mnli" else [task]:
        lines = (out / f"predict_results_{name}.txt").read_text().splitlines()
        assert lines[0] == "index\tprediction"
        assert [line.split("\t")[0] for line in lines[1:]] == [str(i) for i in range(16)]
        for prediction in (line.split("\t")[1] for line in lines[1:]):
            assert prediction in TASKS[task].labels if TASKS[task].labels else float(prediction) is not None


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.acceptance), 42])
def test_embedded_mrpc_is_learned(run_glue, out, seed):
    status, output, errors = run_glue("--task_name", "mrpc", "--embedded", "--seed", seed)
    assert status == 0, errors
    assert "Training on cpu" in output
    labels = [line.split("\t")[0] for line in (EMBEDDED / "data/MRPC/dev.tsv").read_text().splitlines()[1:]]
    majority = max(labels.count("0"), labels.count("1")) / len(labels)
    assert read(out / "eval_results.json")["eval_accuracy"] >= majority + 0.15


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_configuration_file_can_be_the_only_argument(run_glue, out, tmp_path, suffix):
    config = {"task_name": "rte", "embedded": True, "output_dir": str(out), "do_train": True, "max_steps": 2}
    lines = json.dumps(config) if suffix == "json" else "\n".join(f"{key}: {value}" for key, value in config.items())
    (tmp_path / f"config.{suffix}").write_text(lines)
    status, _, errors = run_glue(tmp_path / f"config.{suffix}", output_dir=False)
    assert status == 0, errors
    assert set(read(out / "all_results.json")) >= {"train_loss"}
    assert not (out / "eval_results.json").exists()


@pytest.fixture
def table(tmp_path):
    """Writes rows as a csv or json file."""

    def write(name, rows):
        path = tmp_path / name
        if path.suffix == ".csv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        else:
            path.write_text("\n".join(json.dumps(row) for row in rows))
        return path

    return write


@pytest.mark.parametrize("suffix", ["csv", "json"])
@pytest.mark.parametrize("labels", [("spam", "ham"), (3, 7), (0.25, 0.75)], ids=str)
def test_files_of_ones_own_are_trained_on(run_glue, out, table, suffix, labels):
    rows = [{"id": i, "text": f"the clock, number {i}", "label": labels[i % 2]} for i in range(40)]
    files = [table(f"{name}.{suffix}", rows) for name in ("train", "validation")]
    test = table(f"test.{suffix}", [{"id": row["id"], "text": row["text"]} for row in rows])
    status, _, errors = run_glue(
        *("--train_file", files[0], "--validation_file", files[1], "--test_file", test, "--max_steps", 2),
        *("--config_name", EMBEDDED, "--tokenizer_name", EMBEDDED, "--model_name_or_path", trained(run_glue, out)),
        *("--do_train", "--do_eval", "--do_predict", "--overwrite_output_dir", "--max_seq_length", 32),
        "--ignore_mismatched_sizes",
    )
    assert status == 0, errors
    results = read(out / "eval_results.json")
    predicted = {line.split("\t")[1] for line in (out / "predict_results.txt").read_text().splitlines()[1:]}
    if isinstance(labels[0], float):
        assert "eval_mse" in results
    else:
        assert "eval_accuracy" in results
        assert predicted <= {str(label) for label in labels}


def trained(run_glue, out):
    """The folder of a model that was trained before."""
    status, _, errors = run_glue("--task_name", "sst2", "--embedded", "--do_train", "--max_steps", 1)
    assert status == 0, errors
    return out.rename(out.parent / "trained")


def test_trained_model_is_evaluated_from_its_folder(run_glue, out, tmp_path):
    run_glue("--task_name", "mrpc", "--embedded", *SHORT)
    first = read(out / "eval_results.json")
    model = out.rename(tmp_path / "model")
    status, _, errors = run_glue(
        *("--task_name", "mrpc", "--data_dir", EMBEDDED / "data/MRPC", "--model_name_or_path", model, "--do_eval"),
        *("--max_eval_samples", 32),
    )
    assert status == 0, errors
    assert read(out / "eval_results.json")["eval_loss"] == pytest.approx(first["eval_loss"], abs=1e-5)


def test_labels_in_the_models_own_order_are_kept(run_glue, out, tmp_path):
    run_glue("--task_name", "rte", "--embedded", "--do_train", "--max_steps", 1)
    model = out.rename(tmp_path / "model")
    config = read(model / "config.json")
    config["id2label"] = {"0": "Not_Entailment", "1": "Entailment"}
    config["label2id"] = {"Not_Entailment": 0, "Entailment": 1}
    (model / "config.json").write_text(json.dumps(config))
    command = ("--task_name", "rte", "--data_dir", EMBEDDED / "data/RTE", "--do_eval", "--model_name_or_path")
    assert run_glue(*command, model)[0] == 0
    swapped = read(out / "eval_results.json")["eval_accuracy"]
    config["id2label"] = {"0": "Entailment", "1": "Not_Entailment"}
    config["label2id"] = {"Entailment": 0, "Not_Entailment": 1}
    (model / "config.json").write_text(json.dumps(config))
    assert run_glue(*command, model)[0] == 0
    assert read(out / "eval_results.json")["eval_accuracy"] == pytest.approx(1 - swapped)


def test_second_run_goes_on_from_the_checkpoint(run_glue, out):
    command = ("--task_name", "mrpc", "--embedded", "--do_train", "--max_train_samples", 64, "--save_steps", 2)
    assert run_glue(*command, "--save_strategy", "steps", "--max_steps", 2)[0] == 0
    status, output, errors = run_glue(*command, "--save_strategy", "steps", "--max_steps", 4)
    assert status == 0, errors
    assert f"Resuming from {out / 'checkpoint-2'}" in output
    history = read(out / "trainer_state.json")["log_history"]
    assert history[-1]["step"] == 4
    results = (out / "train_results.json").read_text()
    status, output, _ = run_glue(*command, "--max_steps", 4)
    assert status == 0
    assert "Nothing left to train" in output
    assert (out / "train_results.json").read_text() == results
    status, output, _ = run_glue(*command, "--max_steps", 2, "--overwrite_output_dir")
    assert "Going on" not in output
    assert read(out / "trainer_state.json")["global_step"] == 2


def test_use_mps_device_warns_once_and_use_cpu_wins(run_glue):
    with pytest.warns(FutureWarning, match="use_mps_device") as caught:
        status, output, _ = run_glue("--task_name", "mrpc", "--embedded", *SHORT, "--use_mps_device", "--use_cpu")
    assert status == 0
    assert len([warning for warning in caught if warning.category is FutureWarning]) == 1
    assert "Training on cpu" in output


def test_help_lists_every_flag(run_glue):
    status, output, _ = run_glue("--help", output_dir=False)
    assert status == 0
    for flag in ("--task_name", "--data_dir", "--embedded", "--model_name_or_path", "--use_mps_device", "--bf16"):
        assert flag in output


def test_metrics_are_not_loaded_before_there_is_something_to_measure(tmp_path):
    """Imports take a second, so they wait until a task needs them."""
    code = (
        "import sys, run_glue\n"
        "from transformers import TrainerCallback\n"
        "from mps_trainer import Trainer\n"
        "loaded = []\n"
        "class Look(TrainerCallback):\n"
        "    def on_step_begin(self, *args, **kwargs):\n"
        "        loaded.extend(name for name in ('evaluate', 'sklearn') if name in sys.modules)\n"
        "make = run_glue.make_trainer\n"
        "def made(*args):\n"
        "    trainer = make(*args)\n"
        "    trainer.add_callback(Look())\n"
        "    return trainer\n"
        "run_glue.make_trainer = made\n"
        "status = run_glue.main(sys.argv[1:])\n"
        "print('loaded', loaded, 'evaluate' in sys.modules, status)\n"
    )
    arguments = [
        "--task_name",
        "mrpc",
        "--embedded",
        "--do_train",
        "--do_eval",
        "--max_steps",
        "1",
        "--save_strategy",
        "no",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--output_dir", str(tmp_path / "out")],
        cwd=EXAMPLE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "loaded [] True 0", done.stderr
