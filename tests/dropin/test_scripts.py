"""All that a script does has the same losses, metrics and files, whichever library its Trainer comes from."""

import json
import random

import datasets
import numpy as np
import transformers

from tests.tiny import WORDS, tiny, tokenizer_of_words


def make_rows(count: int, draw: random.Random, tokenizer) -> datasets.Dataset:
    texts = [draw.choices(WORDS, k=draw.randint(4, 14)) for _ in range(count)]
    rows = [dict(tokenizer(words, is_split_into_words=True)) for words in texts]
    labels = [{"labels": [int(word > "w2") for word in words]} for words in texts]
    return datasets.Dataset.from_list([row | each for row, each in zip(rows, labels, strict=True)])


def accuracy(prediction):
    """Over the labels that count."""
    right, counts = prediction.predictions == prediction.label_ids, prediction.label_ids != -100
    return {"accuracy": float(np.sum(right & counts) / np.sum(counts))}


def test_script_has_same_losses_metrics_and_files(assert_same_runs):
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2, "learning_rate": 1e-3}

    def run(library):
        draw, tokenizer = random.Random(0), tokenizer_of_words()
        train, dev = (make_rows(count, draw, tokenizer) for count in (24, 10))
        trainer = library.trainer(
            tiny("BertForTokenClassification"), train_dataset=train, eval_dataset=dev, processing_class=tokenizer,
            data_collator=transformers.DataCollatorForTokenClassification(tokenizer), compute_metrics=accuracy,
            load_best_model_at_end=True,
            preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1), **settings,
        )  # fmt: skip
        result = trainer.train()
        trainer.save_model()
        trainer.save_state()
        for split, metrics in (("train", result.metrics), ("eval", trainer.evaluate())):
            trainer.log_metrics(split, metrics)
            trainer.save_metrics(split, metrics)
        trainer.save_metrics("test", {"score": 2.0}, combined=False)
        predictions = trainer.predict(dev).predictions
        own = ("loop_state.json", "manifest.json")  # each checkpoint has them beside the others
        files = {str(path.relative_to(library.folder)) for path in library.folder.rglob("*") if path.name not in own}
        names = ("trainer_state.json", "all_results.json", "train_results.json", "config.json")
        state, *read = (json.loads((library.folder / name).read_text()) for name in names)
        return files, predictions, state["log_history"], read

    assert len(assert_same_runs(run)[2]) == 6 + 2 + 1
