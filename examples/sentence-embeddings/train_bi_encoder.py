#!/usr/bin/env python
"""Trains sentence embeddings on pairs with sentence-transformers, on this package's Trainer.

    python train_bi_encoder.py

trains a tiny BERT on the pairs that come with this script;

    python train_bi_encoder.py --model_name_or_path microsoft/mpnet-base --dataset_config pair \\
        --dataset_name sentence-transformers/all-nli --max_train_samples 10000 --output_dir OUT

a pretrained model on a dataset. It picks the best device. `--help` lists every flag.
"""

from __future__ import annotations

import mps_trainer.replace_transformers  # noqa: F401  # before sentence-transformers is imported

# isort: split

import os
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from bi_encoder_arguments import NAME, DataArguments, ModelArguments, parse

from mps_trainer import MisconfigurationException
from mps_trainer.distributed import Processes
from mps_trainer.scripts import run, set_up_logging
from mps_trainer.scripts.loading import errors_about, load_splits
from mps_trainer.scripts.reach import go_offline_if_unreachable
from mps_trainer.utils.terminal import on_terminal

INSTEAD = "Give a folder, a name on a hub that can be reached, or neither model nor data for the tiny model."
ACCURACY, MRR = "eval_held_out_cosine_accuracy@1", "eval_held_out_cosine_mrr@10"


def main(argv: list[str] | None = None) -> int:
    """Runs the script; returns the exit status, as `mps_trainer.scripts.run` has it."""
    return run(NAME, lambda: parse(sys.argv[1:] if argv is None else argv), prepare, do)


@dataclass(frozen=True)
class Job:
    """A Trainer, the pairs that were held back, and the checkpoint to resume from."""

    trainer: Any
    held: Any
    checkpoint: str | None


def prepare(model_args: ModelArguments, data_args: DataArguments, training_args: Any) -> Job:
    """Loads everything that training needs, and refuses what cannot be trained."""
    processes = Processes.of(training_args)  # first of all: an unavailable device is known in seconds
    from mps_trainer.checkpoints.folders import checkpoint_to_resume

    checkpoint = processes.first_does(
        lambda: checkpoint_to_resume(training_args.resume_from_checkpoint, training_args.output_dir)
    )
    if any(name and not os.path.exists(name) for name in (model_args.model_name_or_path, data_args.dataset_name)):
        go_offline_if_unreachable()
    set_up_logging(training_args)
    import datasets
    from transformers import set_seed

    if not on_terminal():
        datasets.disable_progress_bars()
    set_seed(training_args.seed)  # before the model, whose weights may be random
    train, held = load_pairs(data_args, training_args.seed)
    model = load_model(model_args, training_args)
    return Job(make_trainer(model, training_args, train, held, model_args.scale), held, checkpoint)


def load_pairs(data_args: DataArguments, seed: int) -> tuple[Any, Any]:
    """Returns the pairs to train on and those to evaluate on."""
    if data_args.dataset_name is None:
        from bi_encoder_pairs import pairs
        from datasets import Dataset

        train, held = (Dataset.from_list(part) for part in pairs())
    else:
        train, held = load_splits(
            data_args.dataset_name,
            data_args.dataset_config,
            data_args.dataset_train_split,
            data_args.dataset_test_split,
            seed,
            INSTEAD,
        )
        columns = train.column_names
        if len(columns) < 2 or not all(isinstance(train[0][column], str) for column in columns):
            raise MisconfigurationException(
                f"--dataset_name {data_args.dataset_name} has the columns {', '.join(columns)}, and two or more "
                "columns of text are expected: questions, answers, then wrong answers."
            )
    return first(train, data_args.max_train_samples), first(held, data_args.max_eval_samples)


def first(rows: Any, count: int | None) -> Any:
    """Returns the first `count` rows; all of them where it is None."""
    return rows if count is None else rows.select(range(min(count, len(rows))))


def load_model(model_args: ModelArguments, training_args: Any) -> Any:
    """Returns the named model, or the tiny one, on the device of the arguments."""
    from sentence_transformers import SentenceTransformer

    device = str(training_args.device)
    name = model_args.model_name_or_path
    if name is None:
        from bi_encoder_pairs import write_tiny_bert

        with tempfile.TemporaryDirectory() as folder:
            write_tiny_bert(folder)
            model = SentenceTransformer(folder, device=device)
    else:
        with errors_about("model", name, INSTEAD):
            model = SentenceTransformer(name, device=device, revision=model_args.model_revision)
    if model_args.max_seq_length is not None:
        model.max_seq_length = model_args.max_seq_length
    return model


def make_trainer(model: Any, training_args: Any, train: Any, held: Any, scale: float) -> Any:
    """Returns sentence-transformers' trainer, which searches each answer among all that are held back."""
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    answers: dict[str, set[str]] = {}
    for question, answer in texts(held):
        answers.setdefault(question, set()).add(answer)
    corpus = {answer: answer for found in answers.values() for answer in found}
    evaluator = InformationRetrievalEvaluator(
        {question: question for question in answers},
        corpus,
        answers,
        mrr_at_k=[10],
        batch_size=training_args.per_device_eval_batch_size,
        name="held_out",
        write_csv=False,
    )
    loss = MultipleNegativesRankingLoss(model, scale=scale)
    return SentenceTransformerTrainer(
        model, training_args, train_dataset=train, eval_dataset=held, loss=loss, evaluator=evaluator
    )


def texts(pairs: Any) -> list[tuple[str, str]]:
    """Returns the first two columns."""
    first, second = pairs.column_names[:2]
    return list(zip(pairs[first], pairs[second], strict=True))


def do(job: Job) -> None:
    """Trains, saves, and says what was gained."""
    trainer = job.trainer
    before = trainer.evaluate()
    result = trainer.train(resume_from_checkpoint=job.checkpoint)
    trainer.save_model()
    metrics = trainer.evaluate()
    metrics |= {f"{name}_before": before[name] for name in ("eval_loss", ACCURACY, MRR)}
    for kind, values in (("train", result.metrics), ("eval", metrics)):
        trainer.log_metrics(kind, values)
        trainer.save_metrics(kind, values)
    trainer.save_state()
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    if not trainer.is_world_process_zero():
        return
    print(
        f"Of {len(job.held)} pairs that were held back, the right answer is the nearest: {before[ACCURACY]:.1%} "
        f"before, {metrics[ACCURACY]:.1%} after. MRR@10: {before[MRR]:.3f} before, {metrics[MRR]:.3f} after."
    )
    question, nearest = nearest_answer(trainer.model, texts(job.held))
    print(f"Nearest to {question!r}: {nearest!r}")


def nearest_answer(model: Any, pairs: list[tuple[str, str]]) -> tuple[str, str]:
    """Returns the first question, and the answer that the model finds nearest to it."""
    question, answers = pairs[0][0], [answer for _, answer in pairs]
    similarities = model.similarity(model.encode([question]), model.encode(answers))[0]
    return question, answers[int(similarities.argmax())]


if __name__ == "__main__":
    sys.exit(main())
