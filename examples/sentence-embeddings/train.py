#!/usr/bin/env python
"""Trains sentence embeddings on pairs of texts: python train.py --dataset_name pairs.csv --output_dir OUT"""

import mps_trainer.replace_transformers  # noqa: F401, I001  # before sentence_transformers, to train on mps_trainer

import sys
from dataclasses import dataclass

from mps_trainer import MisconfigurationException
from mps_trainer.scripts import checkpoint_to_resume, one_line_errors, one_line_import_errors
from mps_trainer.scripts.flags import OneLineParser
from mps_trainer.scripts.loading import errors_about_model
from mps_trainer.scripts.tables import load_splits, require_columns, sample

with one_line_import_errors("train.py"):
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss


@dataclass
class Arguments:
    model_name_or_path: str = "sentence-transformers/all-MiniLM-L6-v2"  # on the hub, or a folder
    dataset_name: str = "sentence-transformers/natural-questions"  # on the hub, a folder, or a file such as pairs.csv
    dataset_config_name: str | None = None  # for a dataset with several configurations
    text_column_names: str | None = None  # as in question,answer; without it, all columns in their order
    max_train_samples: int | None = None  # train on so many rows, drawn at random
    max_eval_samples: int | None = None


# The loss takes the other answers of a batch for wrong ones, so none may be there twice.
DEFAULTS = {"per_device_train_batch_size": 32, "batch_sampler": "no_duplicates", "warmup_steps": 0.1}
# The epoch whose model finds the most answers is kept.
DEFAULTS |= {"eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 2}
DEFAULTS |= {"load_best_model_at_end": True, "metric_for_best_model": "cosine_accuracy@1"}


@one_line_errors("train.py")
def main() -> None:
    script, args = OneLineParser((Arguments, TrainingArguments), description=__doc__).parse(sys.argv[1:], **DEFAULTS)
    train, held = load_splits(script.dataset_name, script.dataset_config_name)
    if script.text_column_names:
        names = [name.strip() for name in script.text_column_names.split(",")]
        require_columns(train, "text_column_names", *names)
        require_columns(held, "text_column_names", *names)
        train, held = train.select_columns(names), held.select_columns(names)
    train, held = sample(train, script.max_train_samples), sample(held, script.max_eval_samples)
    # a question in the first column, its answer in the second
    if len(held.column_names) < 2:
        raise MisconfigurationException(f"{script.dataset_name} has one column, and two are needed: pairs of texts.")
    queries, answers = ({str(i): text for i, text in enumerate(held[name])} for name in held.column_names[:2])
    search = InformationRetrievalEvaluator(queries, answers, {i: {i} for i in queries}, write_csv=False)

    with errors_about_model(script.model_name_or_path):
        model = SentenceTransformer(script.model_name_or_path, device=str(args.device))
    loss = MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(model, args, train, held, loss, evaluator=search)
    trainer.train(resume_from_checkpoint=checkpoint_to_resume(args))
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    sys.exit(main())
