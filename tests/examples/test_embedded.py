"""The embedded model and data come from the generator that is shipped with them."""

import subprocess
import sys

import pytest

from .conftest import EMBEDDED, EXAMPLE


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.integration
def test_generator_writes_shipped_files(tmp_path):
    subprocess.run([sys.executable, EXAMPLE / "make_embedded.py", tmp_path], check=True)
    assert files(tmp_path) == files(EMBEDDED)


def test_validation_pairs_are_not_in_training_data():
    for folder in (EMBEDDED / "data").iterdir():
        seen = {pair(line, folder.name) for line in (folder / "train.tsv").read_text().splitlines()[1:]}
        for name in ("dev.tsv", "dev_matched.tsv"):
            if (folder / name).exists():
                lines = (folder / name).read_text().splitlines()[1:]
                again = [line for line in lines if pair(line, folder.name) in seen]
                assert len(again) <= 0.05 * len(lines), (folder.name, len(again))


def pair(line, task):
    """Returns the text cells of a row, which are those with a space in them."""
    return tuple(cell for cell in line.split("\t") if " " in cell.strip())
