"""README's script trains, and the screens that it shows in parts are those of the program."""

import re
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from benchmarks import summary
from mps_trainer.cli.screen import screen
from mps_trainer.launching.restarts import Progress, Restart, announcement
from mps_trainer.tools.fit.fit_report import GIB, FitReport, RemedyResult
from tests.tiny import tiny

from .machines import IN_PARTS
from .pages import PAGES, ROOT, Block, blocks_of

BLOCKS = blocks_of(ROOT / "README.md")
LEFT_OUT = "…"
QUESTIONS = (
    "Does it fit my Mac?",
    "Why is my GPU idle?",
    "Will it survive the night?",
    "Which torch faults hit my chip?",
)


def shown(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


def assert_shows(screen: str, block: Block) -> None:
    """Fails unless the block is a command and its screen, with a mark for each place where lines are left out."""
    command, *lines = block.text.splitlines()
    assert command.startswith("$ mps-trainer ")
    pattern = "".join(r"(?:.*\n)+" if line == LEFT_OUT else re.escape(f"{line}\n") for line in lines)
    assert re.fullmatch(pattern, f"{screen}\n"), screen


def test_readme_answers_four_questions_with_screens():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert tuple(headings[:4]) == QUESTIONS
    for question in QUESTIONS:
        section = text.split(f"## {question}\n")[1].split("\n## ")[0]
        assert section.count("```text\n$ mps-trainer ") == 1


@pytest.mark.parametrize("block", shown("part"), ids=lambda block: block.label)
def test_part_of_a_screen_is_printed_by_doctor(block):
    assert_shows(screen(IN_PARTS[block.label]), block)


def test_changed_line_of_a_screen_is_found():
    block = shown("part")[0]
    printed = screen(IN_PARTS[block.label])
    for changed in (printed.replace("not mps  see 1", "not mps  see 2"), "A new line\n" + printed):
        with pytest.raises(AssertionError):
            assert_shows(changed, block)


def test_fit_prints_shown_lines_for_its_figures():
    (block,) = shown("fit")
    peak = float(re.search(r"needs ([\d.]+) GiB", block.text)[1])
    remedy, smaller = re.search(r"^  (\S.*?) +([\d.]+) GiB  from", block.text, re.MULTILINE).groups()
    report = FitReport(
        "PeftModel", 0, 0, (1, 1024), 16, 8, {"weights": round(peak * GIB)},
        (RemedyResult(remedy, round(float(smaller) * GIB)),),
    )  # fmt: skip
    assert_shows(str(report), block)
    # A table of the pages has the same figure for this model.
    lines = [line for page in PAGES if page.parent.name == "docs" for line in page.read_text("utf-8").splitlines()]
    assert any(re.search(rf"^\| .*\b4(B| billion)\b.*\| {peak} GiB", line) for line in lines)


def test_restart_prints_shown_line():
    (block,) = shown("restart")
    after, start, resumed = re.search(
        r"after step (\d+)\..* from (\S+)\.\n.*?resumes after step (\d+) of", block.text, re.DOTALL
    ).groups()
    assert start.endswith(f"checkpoint-{resumed}")
    restart = Restart(1, "died of SIGABRT", Progress(step=int(after), folder="sst2", examples=8))
    assert f"\nmps-trainer: {announcement(restart, 3, 1, start)}\n" in block.text


def test_script_trains_word_for_word(tmp_path, monkeypatch):
    """A tiny model and few rows lie in folders with the names that the script gives to the hub."""
    (block,) = (block for block in BLOCKS if block.language == "python")
    assert len([line for line in block.text.splitlines() if line]) <= 14
    monkeypatch.chdir(tmp_path)
    name, data = Path("distilbert/distilbert-base-uncased"), Path("nyu-mll/glue")
    assert f'"{name}"' in block.text
    assert f'"{data}", "sst2"' in block.text
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "text-classification" / "embedded")
    tokenizer.save_pretrained(name)
    tiny("BertForSequenceClassification", vocab_size=len(tokenizer)).save_pretrained(name)
    (data / "sst2").mkdir(parents=True)
    (data / "README.md").write_text("---\nconfigs:\n- config_name: sst2\n  data_dir: sst2\n---\n", encoding="utf-8")
    rows = [{"sentence": f"it is {'good' if i % 2 else 'bad'}", "label": i % 2, "idx": i} for i in range(16)]
    for split in ("train", "validation"):
        Dataset.from_list(rows).to_parquet(data / "sst2" / f"{split}-0.parquet")
    names: dict = {}
    exec(compile("\n" * block.line + block.text, ROOT / "README.md", "exec"), names)
    assert names["trainer"].state.global_step == 2
    assert "eval_loss" in names["trainer"].state.log_history[-2]
    assert Path("sst2", "checkpoint-2", "model.safetensors").is_file()


def test_readme_has_five_figures_that_a_mac_has_and_what_each_needs():
    table = (ROOT / "README.md").read_text(encoding="utf-8").split(summary.BEGIN)[1].split("\n\n")[0]
    head, _, *rows = (line.strip("| ").split(" | ") for line in table.splitlines())
    assert head == ["transformers", "mps_trainer", "needs"]
    assert len(rows) == 5
    for label, theirs, ours, needs in rows:
        assert float(ours) < float(theirs), label
        assert needs
        assert not re.search(r"\b(seconds|time of|processor|ms)\b", label), "times of a CPU are none of a Mac"
