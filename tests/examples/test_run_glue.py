"""run_glue.py from start to finish."""

import json

import pytest
from datasets import Dataset
from run_glue import TASKS
from transformers import AutoConfig, AutoModelForSequenceClassification

from .conftest import EMBEDDED, read

pytestmark = pytest.mark.integration  # whole scripts

METRICS = {
    "cola": {"matthews_correlation"},
    "stsb": {"pearson", "spearmanr", "combined_score"},
    "mrpc": {"accuracy", "f1", "combined_score"},
    "qqp": {"accuracy", "f1", "combined_score"},
}
SHORT = ("--max_steps", 4, "--max_train_samples", 64, "--max_eval_samples", 32, "--max_predict_samples", 16)


@pytest.mark.parametrize("task", TASKS)
def test_task_trains_evaluates_and_predicts(run_glue, out, task):
    status, _, errors = run_glue("--task_name", task, "--embedded", "--do_train", "--do_eval", "--do_predict", *SHORT)
    assert status == 0, errors
    assert "\r" not in errors  # there are no bars without a terminal
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


@pytest.mark.parametrize(
    ("suffix", "labels"), [("csv", ("spam", "ham")), ("json", (3, 7)), ("json", (0.25, 0.75))], ids=str
)
def test_own_files_are_trained_on(run_glue, out, tmp_path, suffix, labels):
    rows = Dataset.from_list([{"id": i, "text": f"the clock, number {i}", "label": labels[i % 2]} for i in range(40)])
    files = [tmp_path / f"{name}.{suffix}" for name in ("train", "validation", "test")]
    for path, table in zip(files, (rows, rows, rows.remove_columns("label")), strict=True):
        table.to_csv(path) if suffix == "csv" else table.to_json(path)
    AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(EMBEDDED)).save_pretrained(tmp_path)
    status, _, errors = run_glue(
        *("--train_file", files[0], "--validation_file", files[1], "--test_file", files[2], "--max_steps", 2),
        *("--config_name", EMBEDDED, "--tokenizer_name", EMBEDDED, "--model_name_or_path", tmp_path),
        *("--do_train", "--do_eval", "--do_predict", "--overwrite_output_dir", "--max_seq_length", 32),
        "--ignore_mismatched_sizes",
    )
    assert status == 0, errors
    results = read(out / "eval_results.json")
    predicted = {line.split("\t")[1] for line in (out / "predict_results.txt").read_text().splitlines()[1:]}
    if isinstance(labels[0], float):
        assert "eval_mse" in results
    else:
        assert {"eval_accuracy", "eval_f1"} <= results.keys()
        assert predicted <= {str(label) for label in labels}


def test_columns_of_a_table_are_named(run_glue, out, tmp_path):
    (tmp_path / "rows.csv").write_text("review,note,label,kind\n" + "a boat,x,1,water\na house,y,2,land\n" * 10)
    AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(EMBEDDED)).save_pretrained(tmp_path)
    rows, command = tmp_path / "rows.csv", ["--tokenizer_name", EMBEDDED, "--model_name_or_path", tmp_path]
    command += ["--train_file", rows, "--validation_file", rows, "--do_train", "--max_steps", 1]
    status, _, errors = run_glue(*command, "--text_column_names", "review", "--label_column_name", "kind")
    assert status == 0, errors
    assert read(out / "config.json")["id2label"] == {"0": "land", "1": "water"}
    for flag, says in (
        ("--text_column_names", "no text in the column 'gone'"),
        ("--label_column_name", "no column 'gone'"),
    ):
        status, _, errors = run_glue(*command, flag, "gone", "--overwrite_output_dir")
        assert status == 2
        assert says in errors


def test_saved_model_is_evaluated_in_its_order_of_labels(run_glue, out, tmp_path):
    run_glue("--task_name", "rte", "--embedded", "--do_train", "--do_eval", "--max_steps", 1)
    trained = read(out / "eval_results.json")
    model = out.rename(tmp_path / "model")
    config = read(model / "config.json")
    results = []
    for first, second in (("Entailment", "Not_Entailment"), ("Not_Entailment", "Entailment")):
        config |= {"id2label": {"0": first, "1": second}, "label2id": {first: 0, second: 1}}
        (model / "config.json").write_text(json.dumps(config))
        command = ("--task_name", "rte", "--data_dir", EMBEDDED / "data/RTE", "--do_eval")
        assert run_glue(*command, "--model_name_or_path", model)[0] == 0
        results.append(read(out / "eval_results.json"))
    assert results[0]["eval_loss"] == pytest.approx(trained["eval_loss"], abs=1e-5)
    assert sum(result["eval_accuracy"] for result in results) == pytest.approx(1)
    (tmp_path / "rows.csv").write_text("text,label\na,x\nb,y\nc,z\n")
    command = ("--validation_file", tmp_path / "rows.csv", "--do_eval", "--model_name_or_path", model)
    assert "another number of labels. Name the file that it was trained on" in run_glue(*command)[2]


def test_second_run_resumes_from_checkpoint(run_glue, out):
    command = ("--task_name", "mrpc", "--embedded", "--do_train", "--max_train_samples", 64, "--save_steps", 2)
    assert run_glue(*command, "--save_strategy", "steps", "--max_steps", 2)[0] == 0
    status, output, errors = run_glue(*command, "--save_strategy", "steps", "--max_steps", 4)
    assert status == 0, errors
    assert f"Resuming from the newest checkpoint in {out}" in output
    history = read(out / "trainer_state.json")["log_history"]
    assert history[-1]["step"] == 4
    results = (out / "train_results.json").read_text()
    status, output, _ = run_glue(*command, "--max_steps", 4)
    assert status == 0
    assert "Nothing left to train" in output
    assert (out / "train_results.json").read_text() == results
    status, output, _ = run_glue(*command, "--max_steps", 2, "--overwrite_output_dir")
    assert "Resuming" not in output
    assert read(out / "trainer_state.json")["global_step"] == 2
