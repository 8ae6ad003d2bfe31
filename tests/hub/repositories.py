"""Small repositories for the stand-in hub, laid out like `google-bert/bert-base-cased` and `nyu-mll/glue`."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
Splits = dict[str, list[Row]]

MODEL = "google-bert/bert-base-cased"
DATASET = "nyu-mll/glue"

# The sample that ships with the example, in the layout of GLUE's own downloads.
EMBEDDED_MRPC = Path(__file__).parents[2] / "examples" / "text-classification" / "embedded" / "data" / "MRPC"
SPLIT_FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}


class Columns(NamedTuple):
    sentences: tuple[str, ...]
    labels: tuple[str, ...]


COLUMNS = {
    "cola": Columns(("sentence",), ("unacceptable", "acceptable")),
    "mrpc": Columns(("sentence1", "sentence2"), ("not_equivalent", "equivalent")),
}


def made_up_cola() -> Splits:
    """Ten sentences, every second one with its words in reverse order."""
    sentences = ("The dog barked .", "She left early .", "They own a boat .", "Snow fell .", "He sings well .")
    rows = [{"sentence": sentence, "label": 1} for sentence in sentences]
    rows += [{"sentence": " ".join(reversed(sentence.split())), "label": 0} for sentence in sentences]
    return _numbered({"train": rows[::2], "validation": rows[1::4], "test": rows[3::4]})


def read_mrpc(folder: Path = EMBEDDED_MRPC) -> Splits:
    """MRPC from GLUE's tab-separated files. The test file has no labels: they read as -1, as the hub has them."""
    return _numbered({split: _read_pairs(folder / name) for split, name in SPLIT_FILES.items()})


def _read_pairs(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        records = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)  # a quote is a word here
        return [
            {
                "sentence1": record["#1 String"],
                "sentence2": record["#2 String"],
                "label": int(record.get("Quality", -1)),
            }
            for record in records
        ]


def _numbered(splits: Splits) -> Splits:
    """Give every row its `idx`, which counts through all splits."""
    first = 0
    for rows in splits.values():
        for number, row in enumerate(rows):
            row["idx"] = first + number
        first += len(rows)
    return splits


def write_glue(folder: Path, tasks: dict[str, Splits]) -> Path:
    """Write one Parquet file a split and the README whose front matter declares configs, features and sizes."""
    from datasets import ClassLabel, Dataset, Features, Value

    configs, infos = [], []
    for task, splits in tasks.items():
        columns = COLUMNS[task]
        features = Features(
            {
                **{name: Value("string") for name in columns.sentences},
                "label": ClassLabel(names=list(columns.labels)),
                "idx": Value("int32"),
            }
        )
        sizes = []
        for split, rows in splits.items():
            path = folder / task / f"{split}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            table = Dataset.from_list(rows, features=features)
            table.to_parquet(path)
            sizes.append({"name": split, "num_bytes": table.data.nbytes, "num_examples": len(rows)})
        configs.append(_config_of(task, splits))
        infos.append(_info_of(task, columns, sizes))
    # JSON is YAML too, and keeps this file free of a YAML library.
    front_matter = json.dumps({"license": "other", "configs": configs, "dataset_info": infos}, indent=2)
    (folder / "README.md").write_text(f"---\n{front_matter}\n---\n\nA few rows in the layout of GLUE.\n")
    return folder


def _config_of(task: str, splits: Iterable[str]) -> dict[str, Any]:
    return {"config_name": task, "data_files": [{"split": name, "path": f"{task}/{name}-*"} for name in splits]}


def _info_of(task: str, columns: Columns, sizes: list[dict[str, Any]]) -> dict[str, Any]:
    names = {str(number): name for number, name in enumerate(columns.labels)}
    return {
        "config_name": task,
        "features": [
            *({"name": name, "dtype": "string"} for name in columns.sentences),
            {"name": "label", "dtype": {"class_label": {"names": names}}},
            {"name": "idx", "dtype": "int32"},
        ],
        "splits": sizes,
        "download_size": sum(size["num_bytes"] for size in sizes),
        "dataset_size": sum(size["num_bytes"] for size in sizes),
    }


def write_bert(folder: Path, texts: Iterable[str], seed: int = 0) -> Path:
    """Save a random 2-layer BERT, 32 wide, and a cased WordPiece vocabulary made of `texts`.

    It has the two heads of pretraining, as the published checkpoint has: loading it for classification drops them and
    starts a classifier of its own. Another `seed` gives other weights.
    """
    import torch
    from transformers import BertConfig, BertForPreTraining, BertTokenizer

    vocab = _vocabulary(texts)
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertForPreTraining(config).save_pretrained(folder)
    BertTokenizer(
        vocab={word: number for number, word in enumerate(vocab)}, do_lower_case=False, model_max_length=512
    ).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocab), encoding="utf-8")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\nA tiny random BERT.\n")
    return folder


def _vocabulary(texts: Iterable[str]) -> list[str]:
    """Special tokens, then single characters and their continuations, then whole words: nothing is unknown."""
    words = sorted({word for text in texts for word in text.split()})
    characters = sorted({character for word in words for character in word})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*characters, *(f"##{character}" for character in characters)]
    return list(dict.fromkeys([*special, *pieces, *words]))


def sentences(splits: Splits) -> list[str]:
    """Every text in `splits`."""
    return [value for rows in splits.values() for row in rows for value in row.values() if isinstance(value, str)]
