"""An edited file of settings is accepted or refused in one line, and stays as it is."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st
from run_glue import parse

from mps_trainer import MisconfigurationException, TrainingArguments, scripts
from mps_trainer.launching.config_file import load, load_target
from mps_trainer.launching.settings import variables
from mps_trainer.utils.text import as_line
from tests.edits import looks, mutate, try_edits

pytestmark = pytest.mark.filterwarnings("ignore")
OURS = {"device": "cpu", "mixed_precision": "no", "mps_fallback": True, "num_processes": 2, "memory_fraction": 0.5}
ACCELERATES = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_CPU", "mixed_precision": "bf16",
    "num_processes": 2, "use_cpu": True, "fsdp_config": {}, "tpu_env": [], "main_training_function": "main",
}  # fmt: skip
GLUE = {
    "task_name": "mrpc", "embedded": True, "output_dir": "out", "learning_rate": 1e-4, "max_steps": 2,
    "optim": "adamw_torch", "lr_scheduler_kwargs": {"num_cycles": 1}, "report_to": ["none"], "eval_strategy": "steps",
    "eval_steps": 0.5, "use_cpu": True,
}  # fmt: skip
FSDP = {"state_dict_type": "SHARDED_STATE_DICT", "min_num_params": 0, "transformer_layer_cls_to_wrap": ["BertLayer"]}
ACCELERATOR = {"split_batches": False, "even_batches": True, "gradient_accumulation_kwargs": {"num_steps": 2}}


def launch(path):
    found = load(path)
    assert all(isinstance(value, str) for value in variables(found.settings).values())
    if not found.is_accelerates:
        load_target(path)


def run_glue(path):
    """Runs the script up to its data. Raises its message if it ends with 2."""
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        status = scripts.one_line_errors("run_glue.py")(lambda: parse([str(path)]))()
    assert status in (0, 2)
    if status:
        raise MisconfigurationException(stderr.getvalue().rstrip("\n"))


def fsdp_config(path):
    TrainingArguments(str(path.parent / "out"), fsdp=True, fsdp_config=str(path))


def accelerator_config(path):
    TrainingArguments(str(path.parent / "out"), accelerator_config=str(path))


FILES = [
    ("config.yaml", OURS, launch),
    ("default_config.yaml", ACCELERATES, launch),
    ("run.yaml", GLUE, run_glue),
    ("run.json", GLUE, run_glue),
    ("fsdp.json", FSDP, fsdp_config),
    ("accelerator.json", ACCELERATOR, accelerator_config),
]


@pytest.mark.parametrize(("name", "values", "read"), FILES, ids=[name for name, _, _ in FILES])
def test_unedited_file_is_accepted(tmp_path, name, values, read):
    (tmp_path / name).write_text(written(name, values))
    read(tmp_path / name)


def written(name, values):
    return json.dumps(values) if name.endswith(".json") else yaml.safe_dump(values)


def check_any_edit(draw):
    name, values, read = draw(st.sampled_from(FILES))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(written(name, values))
        for _ in range(draw(st.integers(1, 3))):
            if path.is_file():
                mutate(draw, path.parent)
        before = looks(path.parent)
        try:
            read(path)
        except MisconfigurationException as error:
            refused = str(error)
            assert refused == as_line(refused, len(refused))
        assert looks(path.parent) == before


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.acceptance)])
def test_edited_file_is_accepted_or_refused(count):
    try_edits(count, check_any_edit)
