#!/usr/bin/env python
"""Fine-tunes a pretrained model to classify texts: python train.py --dataset_name reviews.csv --output_dir OUT"""

import sys
from dataclasses import dataclass

import numpy as np
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

from mps_trainer import MisconfigurationException, Trainer, TrainingArguments
from mps_trainer.scripts import checkpoint_to_resume, one_line_errors
from mps_trainer.scripts.flags import OneLineParser
from mps_trainer.scripts.loading import errors_about_model
from mps_trainer.scripts.tables import classified, load_splits


@dataclass
class Arguments:
    model_name_or_path: str = "sentence-transformers/all-MiniLM-L6-v2"  # on the hub, or a folder
    dataset_name: str = "cornell-movie-review-data/rotten_tomatoes"  # on the hub, a folder, or a file such as data.csv
    max_seq_length: int = 128  # tokens after which a text is cut off


@one_line_errors("train.py")
def main() -> None:
    parser = OneLineParser((Arguments, TrainingArguments), description=__doc__)
    # Texts of similar length come together: a Mac compiles each shape of a batch.
    script, args = parser.parse(sys.argv[1:], train_sampling_strategy="bucket_by_length", eval_strategy="epoch")
    train, held = load_splits(script.dataset_name)
    splits, texts, labels = classified({"train": train, "validation": held})  # one or two texts, and `label`
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
        train_dataset=splits["train"].map(tokenize, batched=True),
        eval_dataset=splits["validation"].map(tokenize, batched=True),
        processing_class=tokenizer,
        compute_metrics=lambda output: {"accuracy": np.mean(output.predictions.argmax(-1) == output.label_ids)},
    )
    trainer.train(resume_from_checkpoint=checkpoint_to_resume(args))
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    sys.exit(main())
