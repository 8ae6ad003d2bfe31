"""The shell blocks of the pages that people follow first run word for word; .ci/run runs them."""

import subprocess
import sys

import pytest

from tests.docs import as_written

from .pages import ROOT, Block, blocks_of

RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_each_block_that_is_not_run_names_its_reason():
    labels = {block.label for block in as_written.shell_blocks() if not as_written.is_run(block)}
    assert labels
    assert labels <= set(as_written.REASONS)


def test_scripts_of_pages_are_found():
    assert {name for page in as_written.PAGES for name in as_written.saved_scripts(ROOT / "docs" / f"{page}.md")} == {
        "first.py",
        "classifier.py",
        "use.py",
    }


def test_ci_runs_readmes_commands_before_it_installs_anything_else():
    blocks = [block for block in blocks_of(ROOT / "README.md") if block.language == "bash"]
    assert [".[examples]" in blocks[0].text, "pytest" in blocks[1].text] == [True, True]
    order = [RUN.index(words) for words in ('"$(readme 1)"', '"$(readme 2)"', "phase extras-install")]
    assert order == sorted(order)
    assert RUN.count('pip" --python') == 1  # the extras


@pytest.mark.parametrize(("text", "passes"), [("true", True), ("false | true", False), ("read x && test -z $x", True)])
def test_a_failing_block_is_seen(text, passes, capfd):
    assert as_written.run(Block("page.md", 1, "bash", "", "", text)) is passes
    assert (text in capfd.readouterr().out) is not passes


def test_it_needs_no_package():
    """Runs before anything is installed."""
    words = ["-S", "-c", "from tests.docs import as_written; print(len(as_written.shell_blocks()))"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert int(done.stdout) > 0
