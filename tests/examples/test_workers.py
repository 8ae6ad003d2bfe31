"""Every example loads its data in worker processes, spawned as on a Mac.

Forked ones, as on Linux, need less: nothing is sent to them. So one example has them. tests/libraries has the examples
that need TRL and sentence-transformers.
"""

from pathlib import Path

import pytest

from tests import run_with_two_workers

from .conftest import EXAMPLE, write_bert, write_images, write_vit

pytestmark = pytest.mark.integration  # whole scripts

IMAGES = EXAMPLE.parent / "image-classification"
SCRIPTS = {
    EXAMPLE / "run_glue.py": ["--task_name", "mrpc", "--embedded", "--max_eval_samples", "8"],
    EXAMPLE / "train.py": ["--dataset_name", "data.csv", "--model_name_or_path", "bert"],
    IMAGES / "train.py": ["--dataset_name", "folders", "--model_name_or_path", "vit"],
    IMAGES / "cv_example.py": ["--data_dir", "names"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Writes a table, images sorted by folder and by name, and tiny models for each."""
    folder = tmp_path_factory.mktemp("data")
    write_bert(folder / "bert", max_position_embeddings=128)
    write_vit(folder / "vit")
    write_images(folder / "folders", "{label}/{i}.png")
    write_images(folder / "names", "{label}_{i}.jpg")
    (folder / "data.csv").write_text("text,label\n" + "the boat,water\nthe house,land\n" * 8)
    return folder


@pytest.mark.parametrize(
    ("script", "start_method"),
    [(EXAMPLE / "run_glue.py", "default"), *((script, "spawn") for script in SCRIPTS)],
    ids=lambda given: f"{given.parent.name}/{given.name}" if isinstance(given, Path) else given,
)
def test_example_trains_with_two_workers(script, start_method, data, tmp_path):
    words = [
        *SCRIPTS[script],
        "--max_steps",
        "2",
        "--use_cpu",
        "--output_dir",
        str(tmp_path / "out"),
    ]
    done = run_with_two_workers(start_method, script, *words, cwd=data)
    assert "eval_accuracy" in done.stdout
