"""Python in README and the documentation runs, page by page, from top to bottom; JSON can be read line by line."""

import json
import re

import pytest

from tests.examples.conftest import write_images, write_vit
from tests.mlx_format import save_quantized
from tests.tiny import tiny

from .pages import ROOT, all_blocks

BLOCKS = [block for block in all_blocks("python") if block.kind != "needs"]  # tests/libraries runs those on libraries
PAGES = sorted({block.page for block in BLOCKS})


@pytest.mark.parametrize("page", PAGES)
def test_python_of_page_runs(page, bert, sentences, tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    from mps_trainer import Trainer, TrainingArguments

    monkeypatch.chdir(tmp_path)
    # The names that the pages take as given.
    names = {
        "model": bert,
        "args": TrainingArguments(output_dir="out"),
        "tokenizer": AutoTokenizer.from_pretrained(ROOT / "examples" / "text-classification" / "embedded"),
        "train_dataset": sentences,
        "eval_dataset": sentences[:4],
        "mlx_model": "mlx",
        "texts": [{"input_ids": [7, 8, 9 + i, 10], "labels": [7, 8, 9 + i, 10]} for i in range(8)],
        "Trainer": Trainer,
    }
    sizes = {"hidden_size": 64, "intermediate_size": 64}
    save_quantized(tiny("LlamaForCausalLM", **sizes), tmp_path / "mlx")
    for block in (block for block in BLOCKS if block.page == page):
        # Blank lines before it, so that a traceback names the line of the page.
        exec(compile("\n" * block.line + block.text, ROOT / page, "exec"), names)


def test_pretrained_classifier_trains_on_a_table(tmp_path, monkeypatch):
    """A tiny model takes the place of the one that the page names, and the page's table that of the data set."""
    from transformers import AutoTokenizer

    script, table, _ = (block.text for block in all_blocks("python") if block.page == "docs/pretrained-classifier.md")
    rows = next(block.text for block in all_blocks("text") if block.page == "docs/pretrained-classifier.md")
    monkeypatch.chdir(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "text-classification" / "embedded")
    tokenizer.save_pretrained("tiny")
    tiny("BertForSequenceClassification", vocab_size=len(tokenizer)).save_pretrained("tiny")
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text(rows, encoding="utf-8")
    for words, instead in {
        "distilbert/distilbert-base-uncased": "tiny",
        'data = load_dataset("nyu-mll/glue", "sst2")': table,
    }.items():
        assert words in script
        script = script.replace(words, instead)
    exec(script, {})
    config = json.loads((tmp_path / "classifier" / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "negative", "1": "positive"}


def test_images_train_on_a_folder_of_pictures(tmp_path, monkeypatch):
    script, use = (block.text for block in all_blocks("python") if block.page == "docs/images.md")
    monkeypatch.chdir(tmp_path)
    write_vit(tmp_path / "tiny")
    write_images(tmp_path / "pets", "{label}/{i}.jpg")
    name = "google/vit-base-patch16-224-in21k"
    assert name in script
    made: dict = {}
    exec(script.replace(name, "tiny"), made)
    assert made["trainer"].state.log_history[-2]["eval_accuracy"] >= 0.5
    exec(use.replace("pets/cat/1.jpg", "pets/pug/1.jpg"), made)


def test_page_lists_the_arguments_that_transformers_does_not_have():
    from dataclasses import fields

    import transformers

    from mps_trainer import TrainingArguments
    from mps_trainer.arguments.deprecated import DeprecatedArguments

    theirs, ours, deprecated = (
        {field.name for field in fields(each)}
        for each in (transformers.TrainingArguments, TrainingArguments, DeprecatedArguments)
    )
    page = (ROOT / "docs" / "back-to-transformers.md").read_text(encoding="utf-8")
    listed = page.split("only this Trainer has:")[1].split("Replace")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == ours - theirs - deprecated


@pytest.mark.parametrize("block", all_blocks("json"), ids=str)
def test_lines_of_json_can_be_read(block):
    assert all(json.loads(line) for line in block.text.splitlines())


def test_table_of_exchanges_is_that_of_its_formula():
    names: dict = {}
    for block in (block for block in BLOCKS if block.page == "docs/several-macs.md"):
        exec(block.text, names)
    page = (ROOT / "docs" / "several-macs.md").read_text(encoding="utf-8")
    header, _, *rows = (line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| "))
    assert header[2:] == list(names["links"])
    sizes = [names[name] for name in ("lora", "bert", "billion")]
    exchange, links = names["milliseconds_of_exchange"], names["links"].values()
    expected = [[exchange(size, link) for link in links] for size in sizes]
    assert [[float(cell) for cell in row[2:]] for row in rows] == expected
    assert [row[1] for row in rows] == [f"{4 * size / 1e6:g} MB" for size in sizes]
