"""The card names data, device and versions, and does not overwrite a card that somebody else wrote."""

import platform

import datasets
import pytest
from huggingface_hub import ModelCard
from transformers import BertForSequenceClassification, GPT2LMHeadModel

from mps_trainer.hub import card
from mps_trainer.version import __version__

from ..conftest import Classifier, examples
from ..tiny import tiny


@pytest.fixture
def write(make_trainer, tmp_path):
    """Trains two steps, evaluates and writes the card; gives its text."""

    def run(trainer=None, card_settings=None, **settings):
        made = make_trainer(trainer=trainer, max_steps=2, **settings)
        made.train()
        made.evaluate()
        made.create_model_card(**(card_settings or {}))
        return (tmp_path / "run" / "README.md").read_text()

    return run


def section(text: str, heading: str) -> str:
    after = text.split(f"{heading}\n", 1)[1]
    return after.split("\n#", 1)[0].strip()


def test_the_card_says_data_device_precision_and_versions(write):
    text = write(bf16=True, max_grad_norm=0.5)
    assert section(text, "## Training and evaluation data").splitlines()[2:] == [
        "| training | 40 | not known |",
        "| evaluation | 24 | not known |",
    ]
    device = section(text, "### Device")
    assert device.startswith("- Device: cpu. use_cpu=True")
    assert "- Machine: " in device
    assert " samples/s" in device
    arguments = section(text, "### Training hyperparameters")
    for line in ("- precision: bfloat16 autocast", "- max_grad_norm: 0.5", "- epochs: 0.4", "- seed: 42"):
        assert line in arguments.splitlines()
    versions = section(text, "### Framework versions").splitlines()
    assert f"- mps_trainer {__version__}" in versions
    assert f"- Python {platform.python_version()}" in versions
    assert [line.split()[1] for line in versions[:2]] == ["Transformers", "Pytorch"]
    assert "- Loss: " in text


def table_of_rows():
    rows = [{"x": row["x"].tolist(), "labels": row["labels"]} for row in examples(8)]
    return datasets.Dataset.from_list(rows).with_format("torch")


def test_a_dataset_of_the_hub_is_named_with_split_and_licence(write):
    def rows(split):
        made = table_of_rows()
        made.info.builder_name, made.info.dataset_name = "parquet", "points"
        made.info.config_name, made.info.license = "small|er", "mit"
        made._split = datasets.NamedSplit(split)
        return made

    text = write(trainer={"train_dataset": rows("train"), "eval_dataset": rows("validation")})
    lines = section(text, "## Training and evaluation data").splitlines()[2:]
    assert lines[0] == r"| training | 8 | points, small\|er, split train, licence mit |"
    assert "split validation" in lines[1]


def test_data_that_do_not_say_where_they_are_from_are_called_as_the_script_does(write):
    rows = section(write(card_settings={"dataset": "boats | by hand"}), "## Training and evaluation data").splitlines()
    assert rows[2] == r"| training | 40 | boats \| by hand |"


def test_a_simulated_device_is_called_one(make_trainer, mps):
    trainer = make_trainer()
    assert "- Device: mps, simulated on the CPU. " in card.completed("### Framework versions\n", "", trainer.args, [])


def test_a_dataset_made_in_memory_is_not_called_none(write):
    text = write(trainer={"train_dataset": table_of_rows(), "eval_dataset": table_of_rows()})
    assert "None" not in text.split("## Training procedure")[0]
    assert "an unknown dataset" in text


def test_several_evaluations_and_a_stream_have_a_row_each():
    stream = datasets.IterableDataset.from_generator(lambda: iter(()))
    table = card.data_table(examples(40), {"near": examples(3), "far": stream})
    assert "| evaluation, near | 3 |" in table
    assert "| evaluation, far | a stream |" in table


def test_the_task_of_a_class_is_that_of_transformers_card():
    kinds = (BertForSequenceClassification, GPT2LMHeadModel, Classifier)
    assert [card.task_of(kind) for kind in kinds] == ["text-classification", "text-generation", None]


def test_an_uploaded_model_is_named_after_its_repository_and_keeps_its_own_tags(make_args):
    args, model = make_args(hub_model_id="ada/boats"), Classifier()
    assert card.settings_for_upload({"language": "en"}, args, model) == {"language": "en", "model_name": "boats"}
    model.model_tags = ["own", "small"]
    settings = card.settings_for_upload({"tags": "small", "model_name": None}, args, model)
    assert settings == {"tags": ["small", "own"], "model_name": "boats"}
    assert card.settings_for_upload({"model_name": "it"}, make_args(), model)["model_name"] == "it"
    assert card.settings_for_upload({}, make_args(), model) == {"tags": ["own", "small"], "model_name": "run"}


def test_a_card_of_somebody_else_is_kept_and_named_and_an_own_one_is_written_over(write, tmp_path, caplog):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "README.md").write_text("# Mine\n")
    first = write()
    assert (folder / "README.before.md").read_text() == "# Mine\n"
    assert "is kept in README.before.md" in caplog.text
    assert card.is_ours(first)
    caplog.clear()
    write(overwrite_output_dir=True)
    assert caplog.text == ""
    (folder / "README.md").write_text(first.replace("More information needed", "Boats, by Ada.", 1))
    write(overwrite_output_dir=True)
    assert "Boats, by Ada." in (folder / "README.before.2.md").read_text()
    assert len(list(folder.glob("README*"))) == 3


@pytest.mark.parametrize("theirs", [b"---\nboats: [\n---\n", b"---\n- a\n---\n", "---\n1: café".encode("latin-1")])
def test_a_card_that_cannot_be_read_is_kept_and_replaced(write, tmp_path, theirs):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "README.md").write_bytes(theirs)
    assert card.is_ours(write())
    assert (tmp_path / "run" / "README.before.md").read_bytes() == theirs


def test_a_card_whose_header_was_damaged_is_not_ours(write):
    assert not card.is_ours(write().replace("---\n", "---\nboats: [\n", 1))


@pytest.mark.parametrize("name", ["README.md", "README.before.md"])
@pytest.mark.parametrize("target", ["a file", "nothing", "a folder"])
def test_a_link_is_replaced_and_its_target_stays(write, tmp_path, name, target):
    folder, outside = tmp_path / "run", tmp_path / "outside"
    folder.mkdir()
    (folder / "README.md").write_text("# Mine\n")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    if target == "a file":
        outside.write_text("# Theirs\n")
    elif target == "a folder":
        outside.mkdir()
    assert card.is_ours(write())
    assert not (folder / "README.md").is_symlink()
    assert (outside.is_file(), outside.is_dir()) == (target == "a file", target == "a folder")
    assert target != "a file" or outside.read_text() == "# Theirs\n"
    kept = {path.read_text() for path in folder.glob("README.before*") if path.is_file()}
    assert kept == ({"# Theirs\n"} if target == "a file" else set()) | ({"# Mine\n"} if name != "README.md" else set())


def test_an_adapters_card_names_no_folder_and_says_the_adapter(make_trainer, tmp_path):
    peft = pytest.importorskip("peft")

    base = tiny("BertForSequenceClassification")
    base.config._name_or_path = str(tmp_path)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))
    rows = [{"input_ids": [1, 2, 3], "labels": i % 2} for i in range(8)]
    trainer = make_trainer({"model": model, "train_dataset": rows, "eval_dataset": None}, max_steps=1)
    trainer.train()
    trainer.save_model()
    assert card._UNTOUCHED in (tmp_path / "run" / "README.md").read_text()  # PEFT's, which has nothing to keep
    trainer.create_model_card()
    text = (tmp_path / "run" / "README.md").read_text()
    assert not list((tmp_path / "run").glob("README.before*"))
    assert card.is_ours(text)
    assert "adapter default: LORA with r=2" in text
    header = ModelCard(text).data.to_dict()
    assert header["library_name"] == "peft"
    assert "base_model" not in header
    assert str(tmp_path) not in text
    trainer.save_model()
    assert card.is_ours((tmp_path / "run" / "README.md").read_text())
