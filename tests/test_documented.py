"""Commands and objects work as documented by PyTorch, Accelerate and Lightning, a row for each.

They are the pages on Macs of transformers (run_glue.py), Accelerate (config, launch, cv_example.py), Lightning
(accelerator="mps", the exception, the fallback) and PyTorch. tests/examples, tests/cli and tests/devices test the
details, and tests/devices/test_lightning.py tests with Lightning itself.
"""

import itertools
from unittest import mock

import pytest
import torch

import mps_trainer.training_args
from mps_trainer import MisconfigurationException, MPSAccelerator, Trainer, TrainingArguments, cli
from tests import ROOT, run_python
from tests.conftest import examples
from tests.devices.machines import MACHINES
from tests.examples.conftest import write_images

GLUE = [str(ROOT / "examples" / "text-classification" / "run_glue.py"), "--task_name", "mrpc", "--embedded"]
GLUE += ["--do_train", "--do_eval", "--max_steps", "2", "--max_eval_samples", "16", "--output_dir", "out"]
CV_EXAMPLE = str(ROOT / "examples" / "image-classification" / "cv_example.py")
SIMULATED = ["-m", "mps_trainer", "simulate"]
LAUNCH = ["-m", "mps_trainer", "launch"]

TRAINS = """\
import torch
from mps_trainer import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.head(x), labels)}

args = TrainingArguments("out", max_steps=1)
Trainer(Model(), args, train_dataset=[{"x": torch.ones(4), "labels": 0}] * 8).train()
print("Trained on", args.device, "with", args.mixed_precision)
"""
# airy_ai has no kernel for mps. The device of the simulator asks whether the fallback was on when torch was loaded.
FALLS_BACK = """\
from mps_trainer.simulator import activate
import torch
activate()
print("Computed for", torch.special.airy_ai(torch.ones(2, device="mps")).device)
"""
SCRIPTS = {
    "your_script.py": TRAINS,
    "fallback.py": FALLS_BACK,
    "at_the_top.py": f'import os\nos.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"\n{FALLS_BACK}',
}
FALLBACK = {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}

# The words after `python`, the variables before it, and what the command prints.
COMMANDS = {
    "transformers: run_glue.py": ([*SIMULATED, *GLUE], {}, "Training on mps"),
    "transformers: --use_mps_device": ([*SIMULATED, *GLUE, "--use_mps_device"], {}, "Training on mps"),
    "Accelerate: launch --cpu": ([*LAUNCH, "--cpu", "your_script.py"], {}, "Trained on cpu with no"),
    "Accelerate: cv_example.py": ([*LAUNCH, "--cpu", CV_EXAMPLE, "--data_dir", "images"], {}, "eval_accuracy"),
    "Lightning: the fallback": (["fallback.py"], FALLBACK, "Computed for mps:0"),
    "PyTorch: the fallback at the top": (["at_the_top.py"], {}, "Computed for mps:0"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns a folder with scripts and images, for a user without settings."""
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    write_images(tmp_path / "images", "{label}_{i}.jpg", count=5)
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.integration
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", COMMANDS)
def test_command_works_as_shown(folder, name):
    words, variables, prints = COMMANDS[name]
    done = run_python(*words, cwd=folder, **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    assert prints in done.stdout


@pytest.mark.integration
@pytest.mark.usefixtures("built")
def test_operator_without_a_kernel_fails_without_the_fallback(folder):
    done = run_python("fallback.py", cwd=folder)
    assert done.returncode == 1
    assert "NotImplementedError" in done.stderr


@pytest.mark.integration
def test_launch_uses_the_answers_of_config(folder, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # the same questions on every machine
    monkeypatch.chdir(folder)
    answers = mock.Mock(side_effect=itertools.chain(["", "bf16"], itertools.repeat("")))
    monkeypatch.setattr("builtins.input", answers)
    assert cli.main(["config"]) == 0
    assert "mixed_precision: bf16" in (folder / "config" / "mps_trainer" / "config.yaml").read_text()
    done = run_python(*LAUNCH, "your_script.py", cwd=folder)
    assert "Trained on cpu with bf16" in done.stdout, done.stderr


SETTINGS = {
    "name": {"accelerator": "mps", "devices": 1},
    "object": {"accelerator": MPSAccelerator(), "devices": 1},
    "auto": {"accelerator": "auto", "devices": "auto"},
    "none": {},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_accelerator_of_lightning_trains_on_mps(mps, make_model, tmp_path, settings):
    args = TrainingArguments(str(tmp_path), max_steps=1, report=False, save_strategy="no", **settings)
    trainer = Trainer(make_model(), args, train_dataset=examples(8))
    trainer.train()
    assert {parameter.device for parameter in trainer.model.parameters()} == {torch.device("mps", 0)}
    assert args.to_dict()["accelerator"] in ("auto", "mps")  # text, which JSON can hold


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (
            "m2_rosetta_mps_built_not_available",
            ["x86_64 build that Rosetta emulates", "install a native arm64 Python"],
        ),
        ("intel_mac", ["Intel"]),
        ("linux", ["this machine runs Linux", "train on an Apple-silicon Mac"]),
    ],
)
@pytest.mark.parametrize("settings", [{"accelerator": "mps", "devices": 1}, {"use_mps_device": True}], ids=str)
@pytest.mark.filterwarnings("ignore:`use_mps_device:FutureWarning")
def test_exception_names_cause_and_remedy_where_mps_cannot_run(monkeypatch, machine, says, settings):
    monkeypatch.setattr(mps_trainer.training_args, "gather_facts", lambda memory_limit: MACHINES[machine])
    with pytest.raises(MisconfigurationException) as refused:
        _ = TrainingArguments(**settings).device
    assert "accelerator='mps' was requested, and it cannot run here: " in str(refused.value)
    assert "What to do: " in str(refused.value)
    assert [part for part in says if part not in str(refused.value)] == []


def test_mps_has_one_device(mps):
    with pytest.raises(MisconfigurationException, match="devices=2 was requested with accelerator='mps'"):
        _ = TrainingArguments(accelerator="mps", devices=2).device
