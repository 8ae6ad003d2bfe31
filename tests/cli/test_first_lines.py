"""Variables that a script sets in its first lines have effect under each command, as with plain Python."""

import json
import subprocess
import sys

import pytest

from tests import HUNG_AFTER

pytestmark = pytest.mark.integration

VARIABLES = {
    "HF_HOME": "caches/home",
    "HF_HUB_CACHE": "caches/hub",
    "HF_DATASETS_CACHE": "caches/datasets",
    "HF_ENDPOINT": "https://mirror.example",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "OMP_NUM_THREADS": "1",
    "PYTORCH_ENABLE_MPS_FALLBACK": "1",
}
SCRIPT = f"""
import json, os, sys
# modules that the command itself needs, which read no variables, and that .pth files of the environment import
loaded = {{name.partition(".")[0] for name in sys.modules}} - sys.stdlib_module_names
print(json.dumps(sorted(name for name in loaded if not name.startswith("_"))))
os.environ.update({VARIABLES})
import torch, transformers, datasets
from huggingface_hub import constants
values = {{
    "HF_HOME": constants.HF_HOME,
    "HF_HUB_CACHE": constants.HF_HUB_CACHE,
    "HF_DATASETS_CACHE": str(datasets.config.HF_DATASETS_CACHE),
    "HF_ENDPOINT": constants.ENDPOINT,
    "HF_HUB_OFFLINE": str(int(constants.HF_HUB_OFFLINE)),
    "TRANSFORMERS_VERBOSITY": {{40: "error"}}.get(transformers.logging.get_verbosity()),
    "OMP_NUM_THREADS": str(torch.get_num_threads()),
}}
print(json.dumps(values))
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
class Model(BertForSequenceClassification):
    def forward(self, input_ids, labels=None):
        logits = super().forward(input_ids).logits
        return {{"loss": torch.nn.functional.multi_margin_loss(logits, labels), "logits": logits}}  # none on mps
args = TrainingArguments("out", max_steps=1, report_to="none", save_strategy="no")
data = [{{"input_ids": [1, 2, 3], "labels": 0}}] * 8
trainer = Trainer(Model(config), args, train_dataset=data)
trainer.train()
print(json.dumps([trainer.args.device.type, type(trainer).__module__]))
"""


@pytest.mark.parametrize("command", ["run", "check", "fit", "simulate"])
def test_variables_of_the_first_lines_have_effect(command, tmp_path, monkeypatch, built):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, "-m", "mps_trainer", command, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HUNG_AFTER,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    loaded, values, *rest = ended.stdout.splitlines()
    assert set(json.loads(loaded)) <= {"mps_trainer", "msgspec", "typing_extensions", "distutils-precedence"}
    assert json.loads(values).items() <= VARIABLES.items()
    if command == "run":
        assert json.loads(rest[-1]) == ["cpu", "mps_trainer.trainer"]
    if command == "check":
        assert "falls back" in "\n".join(rest)
    if command == "simulate":
        assert json.loads(rest[-1]) == ["mps", "transformers.trainer"]
        assert "multi_margin_loss" in ended.stderr  # a fallback
