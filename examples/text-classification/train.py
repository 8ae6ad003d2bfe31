#!/usr/bin/env python
"""Fine-tunes a pretrained model to classify texts: python train.py --dataset_name reviews.csv --output_dir OUT"""

import sys
from dataclasses import dataclass

import numpy as np
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

from mps_trainer import MisconfigurationException, Trainer, TrainingArguments
from mps_trainer.scripts import checkpoint_to_resume, one_line_errors, one_line_import_errors
from mps_trainer.scripts.flags import OneLineParser
from mps_trainer.scripts.loading import errors_about_model
from mps_trainer.scripts.tables import classified, load_splits, sample

with one_line_import_errors("train.py"):
    from sklearn.metrics import f1_score


@dataclass
class Arguments:
    model_name_or_path: str = "sentence-transformers/all-MiniLM-L6-v2"  # on the hub, or a folder
    dataset_name: str = "cornell-movie-review-data/rotten_tomatoes"  # on the hub, a folder, or a file such as data.csv
    dataset_config_name: str | None = None  # for a dataset with several configurations
    text_column_names: str | None = None  # one column, or two: question,answer; without it, the columns with text
    label_column_name: str = "label"
    max_seq_length: int = 128  # tokens after which a text is cut off
    max_train_samples: int | None = None  # train on so many rows, drawn at random
    max_eval_samples: int | None = None


# Texts of similar length come together: a Mac compiles each shape of a batch.
DEFAULTS = {"train_sampling_strategy": "bucket_by_length", "eval_strategy": "epoch", "save_strategy": "epoch"}
# The epoch with the best F1 is kept, as rare labels hardly change the accuracy.
DEFAULTS |= {"save_total_limit": 2, "load_best_model_at_end": True, "metric_for_best_model": "f1"}


def compute_metrics(output):
    predicted = output.predictions.argmax(-1)
    f1 = f1_score(output.label_ids, predicted, average="macro", zero_division=0)  # each label counts the same
    return {"accuracy": np.mean(predicted == output.label_ids), "f1": f1}


@one_line_errors("train.py")
def main() -> None:
    script, args = OneLineParser((Arguments, TrainingArguments), description=__doc__).parse(sys.argv[1:], **DEFAULTS)
    train, held = load_splits(script.dataset_name, script.dataset_config_name)
    splits, texts, labels = classified(  # one or two texts, and `label`
        {"train": train, "validation": held}, script.text_column_names, script.label_column_name
    )
    train, held = (
        sample(splits["train"], script.max_train_samples),
        sample(splits["validation"], script.max_eval_samples),
    )
    if not labels:
        raise MisconfigurationException("The labels are scores, which run_glue.py can learn. Write classes as words.")

    set_seed(args.seed)  # before the model, whose new head has random weights
    with errors_about_model(script.model_name_or_path):
        tokenizer = AutoTokenizer.from_pretrained(script.model_name_or_path)
        model = AutoModelForSequenceClassification.from_pretrained(
            script.model_name_or_path, num_labels=len(labels), ignore_mismatched_sizes=True
        )
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {name: i for i, name in enumerate(labels)}

    def tokenize(rows):
        columns = [[text or "" for text in rows[name]] for name in texts]  # a cell may be empty
        return tokenizer(*columns, truncation=True, max_length=script.max_seq_length)

    trainer = Trainer(
        model,
        args,
        train_dataset=train.map(tokenize, batched=True),
        eval_dataset=held.map(tokenize, batched=True),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )
    trainer.train(resume_from_checkpoint=checkpoint_to_resume(args))
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    sys.exit(main())
