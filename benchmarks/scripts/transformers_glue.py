"""MRPC with transformers' Trainer, in the steps of transformers' own example: pad every sentence pair to 128 tokens.

The data are the task's TSV files. With `--dynamic`, batches are padded to their longest pair instead.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

METRIC = Path(__file__).parents[2] / "examples" / "text-classification" / "metrics" / "glue"  # the hub's, as a file


@dataclass
class ScriptArguments:
    data_dir: str = field(metadata={"help": "Folder with train.tsv and dev.tsv."})
    model_name_or_path: str = field(metadata={"help": "Folder of the model."})
    from_scratch: bool = field(default=False, metadata={"help": "The folder has no weights: draw them."})
    dynamic: bool = field(default=False, metadata={"help": "Pad a batch to its longest example."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens after which a pair is cut off."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many pairs."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many pairs."})


def read(path: Path, limit: int | None) -> Dataset:
    """The pairs of a TSV file, in which quotes mean nothing."""
    with path.open(encoding="utf-8-sig", newline="\n") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:][:limit]
    label, _, _, first, second = zip(*rows, strict=True)
    return Dataset.from_dict({"sentence1": first, "sentence2": second, "label": [int(text) for text in label]})


def main() -> None:
    script, arguments = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    folder = Path(script.data_dir)
    train = read(folder / "train.tsv", script.max_train_samples)
    dev = read(folder / "dev.tsv", script.max_eval_samples)
    tokenizer = AutoTokenizer.from_pretrained(script.model_name_or_path)
    config = AutoConfig.from_pretrained(script.model_name_or_path, num_labels=2)
    if script.from_scratch:
        model = AutoModelForSequenceClassification.from_config(config)
    else:
        model = AutoModelForSequenceClassification.from_pretrained(script.model_name_or_path, config=config)

    def encode(rows: dict[str, list[Any]]) -> Any:
        padding = False if script.dynamic else "max_length"
        return tokenizer(
            rows["sentence1"], rows["sentence2"], padding=padding, max_length=script.max_seq_length, truncation=True
        )

    metric = evaluate.load(str(METRIC), "mrpc")

    def compute_metrics(prediction: Any) -> dict[str, float]:
        result = metric.compute(predictions=prediction.predictions.argmax(-1), references=prediction.label_ids)
        return {**result, "combined_score": float(np.mean(list(result.values())))}

    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=train.map(encode, batched=True),
        eval_dataset=dev.map(encode, batched=True),
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer) if script.dynamic else default_data_collator,
    )
    if arguments.do_train:
        result = trainer.train()
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if arguments.do_eval:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)


if __name__ == "__main__":
    main()
