#!/usr/bin/env python
"""Fine-tunes a model for a GLUE task, or for text classification on data of your own.

    python run_glue.py --task_name mrpc --embedded

trains a tiny model on the sample that comes with this script;

    python run_glue.py --model_name_or_path google-bert/bert-base-cased --task_name mrpc --do_train --do_eval \\
        --max_seq_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3 \\
        --output_dir OUT --overwrite_output_dir

a pretrained one on the real task. It picks the best device. `--help` lists every flag.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glue_arguments import DataTrainingArguments, ModelArguments, parse
from glue_card import card_settings
from glue_data import LabelledData, load_data
from glue_errors import UserError
from glue_model import check_names, label_order, load_model, load_tokenizer, longest_input, require_fitting
from glue_tasks import TASKS

from mps_trainer import TrainingArguments
from mps_trainer.distributed import Processes
from mps_trainer.scripts import run, set_up_logging
from mps_trainer.scripts.reach import go_offline_if_unreachable

NAME = "run_glue.py"
METRIC = Path(__file__).parent / "metrics" / "glue"

logger = logging.getLogger("run_glue")


def main(argv: list[str] | None = None) -> int:
    """Runs the script.

    Returns:
        The exit status: 0, 2 for what the person who typed the command can put right, 1 for what failed on the way,
        130 when interrupted. SIGTERM ends it with 143.
    """
    return run(NAME, lambda: parse(sys.argv[1:] if argv is None else argv), prepare, do)


@dataclass(frozen=True)
class Job:
    """A Trainer with its data, and the checkpoint to go on from."""

    trainer: Any
    labelled: LabelledData
    splits: Any
    data_args: DataTrainingArguments
    checkpoint: str | None


def prepare(model_args: ModelArguments, data_args: DataTrainingArguments, training_args: TrainingArguments) -> Job:
    """Everything that comes before training, and that finds out whether there can be any."""
    processes = Processes.of(training_args)  # first of all: a device that cannot be had is known in seconds
    checkpoint = processes.first_does(lambda: checkpoint_to_continue(training_args))
    check_names(model_args)
    if needs_hub(model_args, data_args):
        go_offline_if_unreachable()
    log_from_here_on(training_args)

    with training_args.main_process_first(desc="loading"):
        labelled = load_data(data_args, model_args)
    require_splits(labelled, training_args)
    require_metric(labelled, data_args, training_args)
    from transformers import set_seed

    set_seed(training_args.seed)  # before the model: a head that is new begins with random weights
    tokenizer = load_tokenizer(model_args, data_args)
    model = load_model(model_args, data_args, labelled, training_args)
    with training_args.main_process_first(desc="tokenizing"):
        splits = tokenize(labelled, tokenizer, label_order(model, labelled), data_args, longest_input(model))
    require_fitting(model, splits, tokenizer)
    trainer = make_trainer(model, tokenizer, labelled, splits, data_args, training_args)
    return Job(trainer, labelled, splits, data_args, checkpoint)


def do(job: Job) -> None:
    args = job.trainer.args
    has_trained = args.do_train and train(job.trainer, job.checkpoint)
    if args.do_eval:
        evaluate(job.trainer, job.splits)
    if args.do_predict:
        predict(job.trainer, job.splits, job.labelled, job.data_args)
    if has_trained:
        write_card(job.trainer, job.data_args)


# Before anything heavy


def checkpoint_to_continue(training_args: TrainingArguments) -> str | None:
    """The checkpoint to go on from, if there is one and nothing says otherwise.

    Raises:
        UserError: for an output folder in use by something else.
    """
    from mps_trainer.checkpoints.folders import (
        checkpoint_to_resume,
        clear_left_overs,
        find_checkpoints,
        is_left_over,
    )
    from mps_trainer.checkpoints.output_folder import only_run_in

    if training_args.do_train and os.path.isdir(training_args.output_dir):
        with only_run_in(training_args.output_dir):
            clear_left_overs(training_args.output_dir)
    if training_args.resume_from_checkpoint is not None:
        return checkpoint_to_resume(training_args.resume_from_checkpoint, training_args.output_dir)
    folder = Path(training_args.output_dir)
    if not training_args.do_train or training_args.overwrite_output_dir or not folder.is_dir():
        return None
    if find_checkpoints(str(folder)):
        found = checkpoint_to_resume(True, str(folder))
        print(f"Resuming from {found}; use --overwrite_output_dir to start again.")
        return found
    if any(not is_left_over(path.name) for path in folder.iterdir()):
        raise UserError(
            f"--output_dir {folder} exists, is not empty and has no checkpoint to go on from. Name another folder, or "
            "add --overwrite_output_dir."
        )
    return None


def needs_hub(model_args: ModelArguments, data_args: DataTrainingArguments) -> bool:
    names = (model_args.model_name_or_path, model_args.config_name, model_args.tokenizer_name)
    local_data = data_args.data_dir is not None or (data_args.task_name is None and data_args.dataset_name is None)
    return not local_data or any(name is not None and not os.path.exists(name) for name in names)


def log_from_here_on(training_args: TrainingArguments) -> None:
    set_up_logging(training_args)
    level = training_args.get_process_log_level()
    if training_args.should_log or training_args.log_level_replica != "warning":  # what is the same in all comes once
        logger.setLevel(level)
    logger.info("Arguments: %s", training_args)


# From data to a Trainer


def require_splits(labelled: LabelledData, training_args: TrainingArguments) -> None:
    wanted = {"train": training_args.do_train, "validation": training_args.do_eval, "test": training_args.do_predict}
    for split, is_wanted in wanted.items():
        if is_wanted and not of_kind(labelled.splits, split):
            verb = {"train": "train", "validation": "eval", "test": "predict"}[split]
            raise UserError(f"--do_{verb} needs {split} data; there is {', '.join(labelled.splits)}.")


def of_kind(splits: Any, kind: str) -> list[str]:
    """The names of the splits of a kind, of which mnli has a matched and a mismatched one."""
    return [name for name in (kind, f"{kind}_matched", f"{kind}_mismatched") if name in splits]


def require_metric(labelled: LabelledData, data_args: DataTrainingArguments, training_args: TrainingArguments) -> None:
    """Raises UserError for a metric_for_best_model that no evaluation will have: it is read after the first one."""
    wanted = (training_args.metric_for_best_model or "loss").removeprefix("eval_")
    known = ["loss", *metric_names(labelled, data_args.task_name)]
    if wanted not in [*known, "runtime", "samples_per_second", "steps_per_second", "jit_compilation_time"]:
        raise UserError(
            f"metric_for_best_model={training_args.metric_for_best_model!r} is not among the metrics of the "
            f"evaluation. Name one of them: {', '.join(known)}."
        )


def metric_names(labelled: LabelledData, task_name: str | None) -> tuple[str, ...]:
    if task_name is not None:
        return TASKS[task_name].metrics
    return ("mse",) if labelled.is_regression else ("accuracy",)


def tokenize(
    labelled: LabelledData,
    tokenizer: Any,
    order: dict[int, int] | None,
    data_args: Any,
    positions: int = sys.maxsize,
) -> Any:
    """The splits as token ids, cut off at max_seq_length, with the model's own label ids.

    Args:
        positions: of how many tokens the model can tell where they stand.
    """
    longest = int(min(data_args.max_seq_length, tokenizer.model_max_length, positions))
    if longest < data_args.max_seq_length:
        logger.warning("max_seq_length is %d; the model takes %d tokens.", data_args.max_seq_length, longest)
    padding = "max_length" if data_args.pad_to_max_length else False

    def encode(rows: dict[str, list[Any]]) -> dict[str, Any]:
        texts = ([text or "" for text in rows[column]] for column in labelled.text)
        encoded = tokenizer(*texts, padding=padding, max_length=longest, truncation=True)
        if order is not None and "label" in rows:
            encoded["label"] = [order.get(label, label) for label in rows["label"]]
        return encoded

    limits = {
        "train": data_args.max_train_samples,
        "validation": data_args.max_eval_samples,
        "test": data_args.max_predict_samples,
    }
    splits = {}
    for name, rows in labelled.splits.items():
        limit = limits.get(name.split("_")[0])
        chosen = rows.select(range(min(limit, len(rows)))) if limit else rows
        splits[name] = chosen.map(
            encode, batched=True, load_from_cache_file=not data_args.overwrite_cache, desc=f"Tokenizing {name}"
        )
    return splits


def make_trainer(
    model: Any, tokenizer: Any, labelled: LabelledData, splits: Any, data_args: Any, training_args: TrainingArguments
) -> Any:
    from transformers import DataCollatorWithPadding, default_data_collator

    from mps_trainer import Trainer

    collator = default_data_collator
    if not data_args.pad_to_max_length:
        collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
    return Trainer(
        model=model,
        args=training_args,
        train_dataset=splits["train"] if training_args.do_train else None,
        eval_dataset=splits[of_kind(splits, "validation")[0]] if training_args.do_eval else None,
        compute_metrics=make_metrics(labelled, data_args.task_name),
        processing_class=tokenizer,
        data_collator=collator,
    )


def make_metrics(labelled: LabelledData, task_name: str | None) -> Any:
    """The task's own metrics; accuracy or mean squared error for data of one's own.

    They are loaded at the first evaluation: what they need takes a second to import, and training need not wait.
    """
    missing = [name for name in ("evaluate", "sklearn", "scipy") if find_spec(name) is None]
    if task_name is not None and missing:
        raise UserError(
            f"The metrics of {task_name} need packages that are not installed: {', '.join(missing)}. "
            "Install them: pip install 'mps_trainer[examples]'."
        )

    @functools.cache
    def load_metric() -> Any:
        import evaluate as metrics

        return metrics.load(str(METRIC), task_name) if task_name is not None else None

    def compute(prediction: Any) -> dict[str, float]:
        import numpy as np

        metric = load_metric()
        logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
        values = logits.reshape(len(logits)) if labelled.is_regression else logits.argmax(axis=-1)
        if metric is not None:
            result = metric.compute(predictions=values, references=prediction.label_ids)
            if len(result) > 1:
                result["combined_score"] = float(np.mean(list(result.values())))
            return result
        if labelled.is_regression:
            return {"mse": float(((values - prediction.label_ids) ** 2).mean())}
        return {"accuracy": float((values == prediction.label_ids).mean())}

    compute.load = load_metric  # type: ignore[attr-defined]
    return compute


# The things to do


def train(trainer: Any, checkpoint: str | None) -> bool:
    """False if the run that is gone on with has come to its end before."""
    result = trainer.train(resume_from_checkpoint=checkpoint)
    was_done = result.metrics["train_steps_per_second"] == 0
    if was_done and (Path(trainer.args.output_dir) / "train_results.json").is_file():
        print(
            f"Nothing left to train: {checkpoint} is the last checkpoint of a finished run. Its results are unchanged."
        )
        return False
    metrics = {**result.metrics, "train_samples": len(trainer.train_dataset)}
    trainer.save_model()
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()
    return True


def evaluate(trainer: Any, splits: Any) -> None:
    """Metrics on the validation data; those of mnli's mismatched set end in `_mm`."""
    trainer.compute_metrics.load()  # takes a second or two, which are not the evaluation's
    combined: dict[str, float] = {}
    for name in of_kind(splits, "validation"):
        metrics = trainer.evaluate(eval_dataset=splits[name])
        metrics["eval_samples"] = len(splits[name])
        if name.endswith("_mismatched"):
            metrics = {f"{key}_mm": value for key, value in metrics.items()}
        combined.update(metrics)
        trainer.log_metrics("eval", metrics)
    if trainer.is_world_process_zero():
        os.makedirs(trainer.args.output_dir, exist_ok=True)
    trainer.save_metrics("eval", combined)


def predict(trainer: Any, splits: Any, labelled: LabelledData, data_args: DataTrainingArguments) -> None:
    """Writes `predict_results_<task>.txt`, or `predict_results.txt` for data of one's own.

    The file has a line with index and prediction for each test example.
    """
    names = [trainer.model.config.id2label[i] for i in range(max(len(labelled.labels), 1))]
    for split in of_kind(splits, "test"):
        rows = splits[split]
        rows = rows.remove_columns("label") if "label" in rows.column_names else rows
        output = trainer.predict(rows, metric_key_prefix="predict").predictions
        logits = output[0] if isinstance(output, tuple) else output
        if labelled.is_regression:
            items = [f"{value:3.3f}" for value in logits.reshape(len(logits))]
        else:
            items = [str(names[i]) for i in logits.argmax(axis=-1)]
        task = "mnli-mm" if split.endswith("_mismatched") else data_args.task_name
        if trainer.is_world_process_zero():
            path = Path(trainer.args.output_dir) / f"predict_results{'' if task is None else f'_{task}'}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [f"{i}\t{item}\n" for i, item in enumerate(items)]
            path.write_text("index\tprediction\n" + "".join(lines), encoding="utf-8")


def write_card(trainer: Any, data_args: DataTrainingArguments) -> None:
    """`README.md` beside the model, with the metrics of the last evaluation; with `--push_to_hub` it is uploaded."""
    write = trainer.push_to_hub if trainer.args.push_to_hub else trainer.create_model_card
    write(**card_settings(data_args))


if __name__ == "__main__":
    sys.exit(main())
