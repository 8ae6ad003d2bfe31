#!/usr/bin/env python
"""Fine-tunes a model for a GLUE task, or for text classification on data of your own.

    python run_glue.py --task_name mrpc --embedded

trains a tiny model on the sample that comes with this script, and

    python run_glue.py --model_name_or_path google-bert/bert-base-cased --task_name mrpc --do_train --do_eval \\
        --max_seq_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3 \\
        --output_dir OUT --overwrite_output_dir

a pretrained one on the real task. It picks the best device. `--help` lists every flag.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import transformers  # loads torch when a model is made, after the flags were checked
from transformers.hf_argparser import HfArg

import mps_trainer
from mps_trainer import MisconfigurationException
from mps_trainer.scripts import checkpoint_to_resume, no_empty_folder_left, one_line_errors, set_up_logging
from mps_trainer.scripts.flags import OneLineParser, check_types, given, read_config
from mps_trainer.scripts.loading import errors_about, go_offline_if_unreachable, load_model, require_folder_or_name
from mps_trainer.scripts.tables import classified, load_dataset, read_table

EMBEDDED = Path(__file__).resolve().parent / "embedded"  # a tiny model without weights, and a sample of each task
# These are for the tiny model, which begins with random weights.
EMBEDDED_DEFAULTS = {"learning_rate": 1e-3, "num_train_epochs": 12.0, "per_device_train_batch_size": 32}
EMBEDDED_DEFAULTS |= {"warmup_steps": 0.1, "logging_steps": 50, "save_strategy": "epoch", "save_total_limit": 1}
INSTEAD = (
    "Give --model_name_or_path a folder with config.json, tokenizer and weights, and --data_dir or --train_file your "
    "data; names on a hub that can be reached; or --embedded for a tiny model and a sample."
)
HUB_DATASET = "nyu-mll/glue"


class Task(NamedTuple):
    """A task of GLUE, with the columns of its TSV files."""

    folder: str
    labels: tuple[str, ...]  # in the order of their ids; none for a score
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    label: str = "label"
    header: tuple[str, ...] | None = None  # labelled files without a header line have these columns


ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": Task("CoLA", ("unacceptable", "acceptable"), ("sentence",), header=("code", "label", "star", "sentence")),
    "mnli": Task("MNLI", ("entailment", "neutral", "contradiction"), label="gold_label"),
    "mrpc": Task("MRPC", ("not_equivalent", "equivalent"), ("#1 String", "#2 String"), "Quality"),
    "qnli": Task("QNLI", ENTAILMENT, ("question", "sentence")),
    "qqp": Task("QQP", ("not_duplicate", "duplicate"), ("question1", "question2"), "is_duplicate"),
    "rte": Task("RTE", ENTAILMENT),
    "sst2": Task("SST-2", ("negative", "positive"), ("sentence",)),
    "stsb": Task("STS-B", (), label="score"),
    "wnli": Task("WNLI", ("not_entailment", "entailment")),
}


@dataclass
class ModelArguments:
    model_name_or_path: str | None = HfArg(default=None, help="Folder of a pretrained model, or its name on the hub.")
    config_name: str | None = HfArg(default=None, help="Configuration. [the model's]")
    tokenizer_name: str | None = HfArg(default=None, help="Tokenizer. [the model's]")
    cache_dir: str | None = HfArg(default=None, help="Where to keep downloads. [HF_HOME]")
    use_fast_tokenizer: bool = HfArg(default=True, help="Use a tokenizer of the tokenizers library.")
    model_revision: str = HfArg(default="main", help="Branch, tag or commit of the model on the hub.")
    token: str | None = HfArg(default=None, help="Token for the hub. [that of `hf auth login`]")
    trust_remote_code: bool = HfArg(default=False, help="Run code from the hub. Only for repositories you trust.")
    ignore_mismatched_sizes: bool = HfArg(default=False, help="Replace a mismatched head.")

    def __post_init__(self) -> None:
        check_types(self)
        for flag in ("model_name_or_path", "config_name", "tokenizer_name"):
            require_folder_or_name(flag, getattr(self, flag), "config.json, tokenizer and weights")


@dataclass
class DataTrainingArguments:
    task_name: str | None = HfArg(default=None, help=f"GLUE task: {', '.join(TASKS)}.")
    data_dir: str | None = HfArg(default=None, help="Folder with the task's TSV files.")
    embedded: bool = HfArg(default=False, help="Train a tiny model on the sample that comes with this script.")
    dataset_name: str | None = HfArg(default=None, help="Dataset on the hub, instead of a task.")
    dataset_config_name: str | None = HfArg(default=None, help="Configuration of that dataset.")
    text_column_names: str | None = HfArg(default=None, help="Columns with text: one, or two with a comma. [found]")
    label_column_name: str = HfArg(default="label", help="Column with labels.")
    train_file: str | None = HfArg(default=None, help="Training data: csv, tsv or json.")
    validation_file: str | None = HfArg(default=None, help="Validation data: csv, tsv or json.")
    test_file: str | None = HfArg(default=None, help="Test data: csv, tsv or json.")
    max_seq_length: int = HfArg(default=128, help="Tokens after which an example is cut off.")
    pad_to_max_length: bool = HfArg(default=False, help="Pad all examples to max_seq_length, not each batch.")
    overwrite_cache: bool = HfArg(default=False, help="Tokenize again even if it was done before.")
    max_train_samples: int | None = HfArg(default=None, help="Train on the first so many examples.")
    max_eval_samples: int | None = HfArg(default=None, help="Evaluate on the first so many examples.")
    max_predict_samples: int | None = HfArg(default=None, help="Predict the first so many examples.")

    def __post_init__(self) -> None:
        check_types(self)
        files = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        self.files = {split: Path(file) for split, file in files.items() if file is not None}
        sources = [name for name in ("embedded", "data_dir", "dataset_name") if getattr(self, name)]
        sources += [f"{split}_file" for split in [*self.files][:1]]
        if self.task_name is None and (self.embedded or self.data_dir):
            raise ValueError(f"--embedded and --data_dir need --task_name: {', '.join(TASKS)}.")
        if self.task_name is not None:
            self.task_name = self.task_name.lower()
            if self.task_name not in TASKS:
                raise ValueError(f"task_name={self.task_name!r} is no GLUE task. Tasks are {', '.join(TASKS)}.")
            sources[:0] = [] if self.embedded or self.data_dir else ["task_name"]
        if len(sources) > 1:
            raise ValueError(f"--{sources[0]} and --{sources[1]} are two sources of data: give one of them.")
        if sources == ["test_file"]:
            raise ValueError(
                "A test file alone does not say which labels there are. Give --train_file as well, as in training, or "
                "--task_name."
            )
        if not sources:
            raise ValueError("There is nothing to train on. Give --task_name, --dataset_name, or --train_file.")
        for name in ("max_seq_length", "max_train_samples", "max_eval_samples", "max_predict_samples"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value} is not accepted: it must be at least 1.")
        if missing := [str(path) for path in self.files.values() if not path.is_file()]:
            raise ValueError(f"{missing[0]} does not exist, or is not a file.")


def parse(argv: list[str]) -> tuple[ModelArguments, DataTrainingArguments, mps_trainer.TrainingArguments]:
    """Returns the arguments from the command line, or from the JSON or YAML file that is its only word."""
    kinds = (ModelArguments, DataTrainingArguments, mps_trainer.TrainingArguments)
    parser = OneLineParser(kinds, prog="run_glue.py", description=str(__doc__).split("\n")[0])
    names, padded = given(argv), read_config(argv).get("pad_to_max_length", True)
    defaults: dict[str, Any] = {"skip_unread_tokens": True}
    if "group_by_length" not in names and not ("pad_to_max_length" in names and padded):
        defaults["train_sampling_strategy"] = "bucket_by_length"  # few lengths, because a Mac compiles each shape
    defaults |= EMBEDDED_DEFAULTS if "embedded" in names else {}
    model_args, data_args, training_args = parser.parse(argv, **defaults)
    if data_args.embedded:
        data_args.data_dir = str(EMBEDDED / "data" / TASKS[data_args.task_name].folder)
    elif model_args.model_name_or_path is None:
        parser.error("--model_name_or_path is missing: give a model's folder or name, or --embedded for a tiny one")
    # an eval_strategy sets do_eval too, and the embedded model has random weights
    evaluates = training_args.do_eval and ("do_eval" in names or not data_args.embedded)
    if not (training_args.do_train or evaluates or training_args.do_predict):
        if not data_args.embedded:
            parser.error("Nothing is asked for: add --do_train, --do_eval or --do_predict")
        training_args.do_train = training_args.do_eval = True
    if not training_args.eval_do_concat_batches:
        parser.error("--eval_do_concat_batches False is not supported: this script needs the predictions as one array")
    if training_args.do_predict and training_args.prediction_loss_only:
        parser.error("--do_predict needs predictions: leave out --prediction_loss_only")
    if not names & {"per_device_eval_batch_size", "per_gpu_eval_batch_size"}:
        # Training splits a batch of 16 and more into halves of two lengths. Evaluation then has the same shapes.
        training_args.per_device_eval_batch_size = max(8, training_args.per_device_train_batch_size // 2)
    return model_args, data_args, training_args


def read_glue(path: Path, task: Task, is_labelled: bool) -> Any:
    """Returns the texts and labels of one of GLUE's own files. Test files have no labels."""
    import datasets

    kind = datasets.ClassLabel(names=list(task.labels)) if task.labels else datasets.Value("float32")
    with errors_about("file", str(path), f"Its {task.label} has to be {', '.join(task.labels) or 'a number'}."):
        rows = read_table(path, task.header if is_labelled else None)
        if not is_labelled:
            return rows.select_columns([*task.texts])
        rows = rows.select_columns([*task.texts, task.label]).cast_column(task.label, kind)
        return rows if task.label == "label" else rows.rename_column(task.label, "label")


def load_splits(model_args: ModelArguments, data_args: DataTrainingArguments) -> dict[str, Any]:
    """Returns the rows of each split that there is."""
    if data_args.files:
        return {split: read_table(path) for split, path in data_args.files.items()}
    if data_args.data_dir is None:
        name, config = data_args.dataset_name or HUB_DATASET, data_args.dataset_config_name or data_args.task_name
        return load_dataset(name, config, INSTEAD, cache_dir=model_args.cache_dir, token=model_args.token)
    folder, task, files = Path(data_args.data_dir), TASKS[data_args.task_name], {"train": "train.tsv"}
    for kind in ("_matched", "_mismatched") if data_args.task_name == "mnli" else ("",):
        files |= {f"validation{kind}": f"dev{kind}.tsv", f"test{kind}": f"test{kind}.tsv"}
    found = {split: folder / file for split, file in files.items() if (folder / file).is_file()}
    if not found:
        names = ", ".join(files.values())
        raise MisconfigurationException(f"--data_dir {folder} has none of the files of this task: {names}.")
    return {split: read_glue(path, task, not split.startswith("test")) for split, path in found.items()}


def load_tokenizer_and_model(model_args: ModelArguments, training_args: Any, labels: list[str]) -> tuple[Any, Any]:
    """Returns the tokenizer, and a model with a head for the labels."""
    name = model_args.model_name_or_path or str(EMBEDDED)
    hub = {"cache_dir": model_args.cache_dir, "revision": model_args.model_revision, "token": model_args.token}
    hub["trust_remote_code"] = model_args.trust_remote_code
    if not os.path.isdir(name):
        go_offline_if_unreachable()
    with errors_about("tokenizer", model_args.tokenizer_name or name, INSTEAD):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model_args.tokenizer_name or name, use_fast=model_args.use_fast_tokenizer, **hub
        )
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # transformers makes this of a missing file
            raise ValueError("it has no vocabulary, only special tokens.")
        if not tokenizer.pad_token:
            raise ValueError("it has no pad_token; name one in its tokenizer_config.json.")
    with errors_about("configuration", model_args.config_name or name, INSTEAD):
        # A model that was trained for another kind of labels has that kind in its configuration.
        problem_type = "single_label_classification" if labels else "regression"
        config = transformers.AutoConfig.from_pretrained(
            model_args.config_name or name, num_labels=max(len(labels), 1), problem_type=problem_type, **hub
        )
    kind = transformers.AutoModelForSequenceClassification
    with errors_about("model", name, INSTEAD):
        if model_args.model_name_or_path is None:
            config.name_or_path = ""  # random weights, and not those of a pretrained model
            return tokenizer, kind.from_config(config)
        replace_head = model_args.ignore_mismatched_sizes
        return tokenizer, load_model(kind, name, training_args, replace_head, config=config, **hub)


def label_order(config: Any, labels: list[str]) -> list[int]:
    """Returns the model's id of each label, and writes the labels into the configuration of a model with others."""
    own = {str(name).lower(): i for i, name in config.id2label.items()}  # label2id may be missing
    order = [own.get(label.lower()) for label in labels]
    if set(order) == set(range(len(labels))):
        return order
    config.id2label = dict(enumerate(labels))
    config.label2id = {name: i for i, name in config.id2label.items()}
    return list(range(len(labels)))


def load_metrics(task_name: str | None, is_regression: bool) -> Any:
    """Returns a function that computes the task's own metrics.

    For data of your own these are accuracy and macro F1, in which each label counts the same, or the squared error.
    """
    if task_name is not None:
        instead = "Install what it needs, pip install 'mps_trainer[examples]', and see that HF_HOME can be written."
        with errors_about("metric for", task_name, instead):
            import evaluate

            metric = evaluate.load(str(EMBEDDED.with_name("metrics") / "glue"), task_name)
    elif not is_regression:
        from sklearn.metrics import f1_score

    def compute_metrics(prediction: Any) -> dict[str, float]:
        values = to_predictions(prediction.predictions, is_regression)
        if task_name is None and is_regression:
            return {"mse": float(((values - prediction.label_ids) ** 2).mean())}
        if task_name is None:
            f1 = f1_score(prediction.label_ids, values, average="macro", zero_division=0)
            return {"accuracy": float((values == prediction.label_ids).mean()), "f1": float(f1)}
        result = metric.compute(predictions=values, references=prediction.label_ids)
        return {**result, "combined_score": sum(result.values()) / len(result)} if len(result) > 1 else result

    return compute_metrics


def to_predictions(output: Any, is_regression: bool) -> Any:
    """Returns a score or the id of a label for each row of the model's output."""
    logits = output[0] if isinstance(output, tuple) else output
    return logits.reshape(len(logits)) if is_regression else logits.argmax(axis=-1)


@one_line_errors("run_glue.py")
def main(argv: list[str] | None = None) -> None:
    model_args, data_args, training_args = parse(sys.argv[1:] if argv is None else argv)
    set_up_logging(training_args)
    logger = logging.getLogger("run_glue")
    logger.setLevel(training_args.get_process_log_level())
    logger.info("Device: %s. Arguments: %s", training_args.device, training_args)
    checkpoint = checkpoint_to_resume(training_args) if training_args.do_train else None
    with training_args.main_process_first(desc="loading the data"):
        found = load_splits(model_args, data_args)
        splits, texts, labels = classified(found, data_args.text_column_names, data_args.label_column_name)
    # mnli has a matched and a mismatched split to evaluate on and to predict
    kinds = {"train": "train", "eval": "validation", "predict": "test"}
    names_of = {do: [name for name in splits if name.split("_")[0] == kind] for do, kind in kinds.items()}
    for do, kind in kinds.items():
        if getattr(training_args, f"do_{do}") and not names_of[do]:
            raise MisconfigurationException(f"--do_{do} needs {kind} data; there is {', '.join(splits)}.")

    transformers.set_seed(training_args.seed)  # a new head has random weights
    tokenizer, model = load_tokenizer_and_model(model_args, training_args, labels)
    order = label_order(model.config, labels)
    longest = int(min(data_args.max_seq_length, tokenizer.model_max_length))
    padding = "max_length" if data_args.pad_to_max_length else False

    def encode(rows: dict[str, list[Any]]) -> dict[str, Any]:
        columns = [[text or "" for text in rows[name]] for name in texts]
        encoded = tokenizer(*columns, padding=padding, max_length=longest, truncation=True)
        if "label" in rows:
            encoded["label"] = [order[i] for i in rows["label"]] if labels else rows["label"]
        return encoded

    with training_args.main_process_first(desc="tokenizing"):
        for do, names in names_of.items():
            for name in names:
                rows = splits[name].select(range(len(splits[name]))[: getattr(data_args, f"max_{do}_samples")])
                keep = not data_args.overwrite_cache
                splits[name] = rows.map(encode, batched=True, load_from_cache_file=keep, desc=f"Tokenizing {name}")

    with no_empty_folder_left(training_args.output_dir):
        trainer = mps_trainer.Trainer(
            model=model,
            args=training_args,
            train_dataset=splits["train"] if training_args.do_train else None,
            eval_dataset=splits[names_of["eval"][0]] if training_args.do_eval else None,
            compute_metrics=load_metrics(data_args.task_name, not labels) if training_args.do_eval else None,
            processing_class=tokenizer,
        )
        has_trained, results = False, Path(training_args.output_dir, "train_results.json")
        if training_args.do_train:
            metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
            has_trained = metrics["train_steps_per_second"] > 0 or not results.is_file()
        if has_trained:
            metrics["train_samples"] = len(splits["train"])
            trainer.save_model()
            trainer.log_metrics("train", metrics)
            trainer.save_metrics("train", metrics)
            trainer.save_state()
        elif training_args.do_train:
            print("Nothing left to train: this run has reached its last step. Its results are unchanged.")
        if training_args.do_eval:
            combined = {}
            for name in names_of["eval"]:
                suffix = "_mm" if name.endswith("_mismatched") else ""
                metrics = {**trainer.evaluate(splits[name]), "eval_samples": len(splits[name])}
                metrics = {f"{key}{suffix}": value for key, value in metrics.items()}
                trainer.log_metrics("eval", metrics)
                combined |= metrics
            trainer.save_metrics("eval", combined)
        if training_args.do_predict:
            predict(trainer, {name: splits[name] for name in names_of["predict"]}, labels, data_args.task_name)
        if has_trained:
            write_card = trainer.push_to_hub if training_args.push_to_hub else trainer.create_model_card
            write_card(**card_settings(data_args))


def predict(trainer: Any, splits: dict[str, Any], labels: list[str], task_name: str | None) -> None:
    """Writes predict_results_<task>.txt, or predict_results.txt for data of your own: a line for each test example."""
    for split, rows in splits.items():
        values = to_predictions(trainer.predict(rows, metric_key_prefix="predict").predictions, not labels)
        names = trainer.model.config.id2label
        items = [names[i] if labels else f"{i:3.3f}" for i in values.tolist()]
        task = "_mnli-mm" if split.endswith("_mismatched") else f"_{task_name}" if task_name else ""
        if trainer.is_world_process_zero():
            lines = ["index\tprediction", *(f"{row}\t{item}" for row, item in enumerate(items))]
            Path(trainer.args.output_dir, f"predict_results{task}.txt").write_text("\n".join(lines) + "\n", "utf-8")


def card_settings(data_args: DataTrainingArguments) -> dict[str, Any]:
    """Returns what the model card says of the task and the data."""
    dataset = data_args.dataset_name or Path(str(data_args.train_file)).name
    settings = {"tasks": "text-classification", "dataset": dataset}
    if data_args.task_name is not None:
        sample = "made-up sample for " if data_args.embedded else ""
        settings |= {"language": "en", "dataset": f"{sample}GLUE {TASKS[data_args.task_name].folder}"}
    if not data_args.data_dir and not data_args.files:
        settings["dataset_tags"] = data_args.dataset_name or HUB_DATASET
        settings["dataset_args"] = data_args.dataset_config_name or data_args.task_name or "default"
    return settings


if __name__ == "__main__":
    sys.exit(main())
