"""Fine-tunes a model on files, as people's scripts do. The Trainer comes from the module that TRAINER_FROM names.

    TRAINER_FROM=mps_trainer python finetune.py --task tokens --model_folder tiny --train_file a.json \
        --dev_file b.json --output_dir out --do_train --do_eval
"""

import importlib
import os
import sys
from dataclasses import dataclass, field

import numpy as np
import torch
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    HfArgumentParser,
    set_seed,
)

library = importlib.import_module(os.environ["TRAINER_FROM"])
MODELS = {
    "sentences": AutoModelForSequenceClassification,
    "tokens": AutoModelForTokenClassification,
    "next": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
    "images": AutoModelForImageClassification,
}


@dataclass
class Choices:
    """Names the task, the model and the data."""

    task: str = field(metadata={"choices": list(MODELS), "help": "What to learn."})
    model_folder: str = field(metadata={"help": "Configuration, and a tokenizer where there is text."})
    train_file: str = field(metadata={"help": "JSON lines."})
    dev_file: str = field(metadata={"help": "JSON lines."})
    length: int = field(default=16, metadata={"help": "Tokens in an example."})


def prepare(choices: Choices, rows, tokenizer):
    """Rows with what the model takes."""
    if choices.task == "images":
        return rows.with_format("torch", columns=["pixel_values", "labels"])

    def encode(batch):
        split = choices.task == "tokens"
        made = tokenizer(
            batch["words" if split else "text"], truncation=True, max_length=choices.length, is_split_into_words=split
        )
        if split:
            made["labels"] = [
                [-100 if place is None else tags[place] for place in made.word_ids(i)]
                for i, tags in enumerate(batch["tags"])
            ]
        elif choices.task == "sentences":
            made["labels"] = batch["label"]
        return made

    return rows.map(encode, batched=True, remove_columns=rows.column_names)


def collator(task: str, tokenizer):
    if task == "images":
        return lambda rows: {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    if task in ("next", "masked"):
        return DataCollatorForLanguageModeling(tokenizer, mlm=task == "masked")
    return (DataCollatorForTokenClassification if task == "tokens" else DataCollatorWithPadding)(tokenizer)


def accuracy(prediction):
    """Over the labels that count."""
    right, counts = prediction.predictions == prediction.label_ids, prediction.label_ids != -100
    return {"accuracy": float(np.sum(right & counts) / np.sum(counts))}


def main() -> None:
    choices, args = HfArgumentParser((Choices, library.TrainingArguments)).parse_args_into_dataclasses()
    set_seed(args.seed)
    has_text = choices.task != "images"
    tokenizer = AutoTokenizer.from_pretrained(choices.model_folder) if has_text else None
    with args.main_process_first(desc="reading"):
        data = load_dataset("json", data_files={"train": choices.train_file, "dev": choices.dev_file})
        data = {name: prepare(choices, rows, tokenizer) for name, rows in data.items()}
    trainer = library.Trainer(
        model=MODELS[choices.task].from_config(AutoConfig.from_pretrained(choices.model_folder)),
        args=args,
        train_dataset=data["train"] if args.do_train else None,
        eval_dataset=data["dev"],
        data_collator=collator(choices.task, tokenizer),
        processing_class=tokenizer,
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )
    if args.do_train:
        result = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if args.do_eval:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if args.do_predict:
        np.savetxt(
            os.path.join(args.output_dir, "predictions.txt"), trainer.predict(data["dev"]).predictions, fmt="%d"
        )
    trainer.create_model_card(finetuned_from="tiny", tags=[choices.task], dataset="files")


if __name__ == "__main__":
    sys.exit(main())
