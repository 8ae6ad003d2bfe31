"""`mps-trainer check`, as a user runs it."""

import functools
import json

import pytest

from .test_doctor import run

BERT = """\
from transformers import BertConfig, BertForSequenceClassification
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
model = BertForSequenceClassification(config)
data = [{"input_ids": [1, 2, 3][: 1 + i % 3] + [0] * (2 - i % 3), "labels": i % 2} for i in range(32)]
"""
OURS = "from mps_trainer import Trainer, TrainingArguments\n"
THEIRS = "from transformers import Trainer, TrainingArguments\n"
TRAIN = """
trainer = Trainer(model, TrainingArguments("out", report_to=[]), train_dataset=data, eval_dataset=data)
trainer.train()
print("trained")
"""
FAILS = """
import torch
class Airy(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        loss = loss + torch.special.airy_ai(loss.detach())
        return (loss, outputs) if return_outputs else loss
Trainer = Airy
"""


@pytest.fixture
def check(run_on):
    return functools.partial(run_on, "check")


@pytest.mark.parametrize("trainer", [OURS, THEIRS], ids=["this Trainer", "transformers' Trainer"])
def test_check_of_a_ready_script_is_0_and_trains_nothing(check, trainer, tmp_path):
    # asking for mps by name is no obstacle, on a machine that has none
    asking = TRAIN.replace("report_to=[]", "report_to=[], accelerator='mps'") if trainer == OURS else TRAIN
    result = check(BERT + trainer + asking)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Ready for mps: torch 2.")
    assert result.stdout.splitlines()[-1] == "Verdict: this step should train on a Mac without fallbacks."
    assert "trained" not in result.stdout
    assert not (tmp_path / "out").exists()


def test_check_allows_bf16_as_on_a_mac(check):
    from transformers import training_args, utils

    before = utils.is_torch_bf16_gpu_available, training_args.is_torch_bf16_gpu_available
    asks = "from transformers.utils import is_torch_bf16_gpu_available\nassert is_torch_bf16_gpu_available()\n"
    result = check(BERT + THEIRS + asks + TRAIN.replace("report_to=[]", "report_to=[], bf16=True"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Ready for mps")
    assert (utils.is_torch_bf16_gpu_available, training_args.is_torch_bf16_gpu_available) == before


CROPS = """
import torch
class Cropped(list):
    crop = torch.nn.Identity()  # transforms of torchvision are modules
    def __getitem__(self, i):
        torch.special.airy_ai(self.crop(torch.ones(1)))
        return super().__getitem__(i)
data = Cropped(data)
"""


@pytest.mark.parametrize("trainer", [OURS, THEIRS], ids=["this Trainer", "transformers' Trainer"])
def test_operators_that_load_data_run_on_the_host(check, trainer):
    result = check(BERT + trainer + CROPS + TRAIN)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("trainer", [OURS, THEIRS], ids=["this Trainer", "transformers' Trainer"])
def test_check_of_a_failing_script_is_1_and_names_the_line(check, trainer, tmp_path):
    result = check(BERT + trainer + FAILS + TRAIN, "--json", "report.json")
    assert result.returncode == 1, result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["ready"]
    assert {use["name"] for use in report["operators"] if use["support"] == "fails"} == {"aten::special_airy_ai.out"}
    assert result.stdout.startswith("Would fail on mps")
    assert "aten::special_airy_ai" in result.stdout
    assert "loss = loss + torch." in result.stdout


READS_A_VARIABLE_LATER = """
import os
os.environ["HF_DATASETS_CACHE"] = os.path.abspath("mine")
import mps_trainer, datasets
assert str(datasets.config.HF_DATASETS_CACHE).endswith("mine")
"""


@pytest.mark.integration
def test_check_sets_the_fallback_before_torch_and_loads_no_datasets_before_the_script(tmp_path):
    (tmp_path / "train.py").write_text(READS_A_VARIABLE_LATER + BERT + OURS + FAILS + TRAIN)
    result = run("check", "--fallback", str(tmp_path / "train.py"))
    assert result.returncode == 0, result.stderr
    assert "falls back" in result.stdout


LOGS = """
class Logs(Trainer):
    def log(self, logs, *args):
        print("logs", self.model.get_parameter("classifier.bias").sum().item())  # for the log
        super().log(logs, *args)
    def save_model(self, *args, **kwargs):
        raise AssertionError("saved")
    def evaluate(self, *args, **kwargs):
        raise AssertionError("evaluated")
Trainer = Logs
"""


@pytest.mark.parametrize("trainer", [OURS, THEIRS], ids=["this Trainer", "transformers' Trainer"])
@pytest.mark.parametrize(("batches", "logging", "logs"), [(3, "steps", 1), (100, "steps", 1), (3, "no", 0)])
def test_check_traces_one_log_if_there_is_any_and_saves_nothing(check, trainer, batches, logging, logs, tmp_path):
    steps = "report_to=[], num_train_epochs=1, per_device_train_batch_size=12, gradient_accumulation_steps=2, "
    steps += f"save_steps=1, eval_strategy='steps', eval_steps=1, logging_strategy='{logging}'"
    result = check(
        BERT + trainer + LOGS + TRAIN.replace("report_to=[]", steps), f"--batches={batches}", "--json", "report.json"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("logs ") == logs
    reads = json.loads((tmp_path / "report.json").read_text())["blocking_reads"]
    assert [read["phase"] for read in reads if "# for the log" in read["where"]["text"]] == ["logging"] * logs
    assert not (tmp_path / "out").exists()
    assert ("The run has 3 batches, fewer than the 100 asked for" in result.stdout) == (batches == 100)


EVALUATES = """
import torch
class Evaluates(Trainer):
    pass
def preprocess(logits, labels):
    return torch.special.airy_ai(logits)
trainer = Evaluates(
    model, TrainingArguments("out", report_to=[]), train_dataset=data, eval_dataset={"a": data, "b": data},
    compute_metrics=lambda prediction: {}, preprocess_logits_for_metrics=preprocess,
)
trainer.train()
"""


@pytest.mark.parametrize("trainer", [OURS, THEIRS], ids=["this Trainer", "transformers' Trainer"])
def test_check_traces_an_evaluation(check, trainer):
    result = check(BERT + trainer + EVALUATES)
    assert result.returncode == 1, result.stderr
    assert "aten::special_airy_ai" in result.stdout
    assert "(evaluation, 1 call)" in result.stdout


@pytest.mark.parametrize("trainer", [OURS, THEIRS], ids=["this Trainer", "transformers' Trainer"])
def test_check_goes_on_without_a_batch_to_evaluate_on(check, trainer):
    asks = """
class Asks(Trainer):  # sentence-transformers' does so
    def get_eval_dataloader(self, eval_dataset=None):
        raise ValueError("Trainer: evaluation requires an eval_dataset.")
Trainer = Asks
"""
    result = check(BERT + trainer + asks + TRAIN.replace(", eval_dataset=data", ""))
    assert result.returncode == 0, result.stderr
    assert "no evaluation was traced" in result.stdout


def test_check_traces_a_plain_loop_where_it_calls_trace(check):
    text = """\
import torch
from mps_trainer.check import trace
model = torch.nn.Linear(3, 3)
def step():
    model(torch.ones(2, 3)).double().sum().backward()
trace(step)
print("went on")
"""
    result = check(text)
    assert "went on" not in result.stdout
    assert result.returncode == 1
    assert "float64" in result.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('no training here')\n", "ended with status 0 before a training step"),
        (BERT + OURS + TRAIN.replace("train_dataset=data", "train_dataset=None"), "give the Trainer a train_dataset"),
    ],
)
def test_check_of_a_script_without_a_step_is_2(check, text, said):
    result = check(text)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stderr.splitlines()[-1].startswith("mps-trainer: error: ")


# Each release of torch writes Metal code for more operators, so one is taken away here.
NO_METAL = """
import torch
from torch._inductor.codegen.mps import MetalOverrides
def none(*_):
    raise NotImplementedError
MetalOverrides.tanh = staticmethod(none)
"""


@pytest.mark.integration  # importing Inductor alone takes seconds
@pytest.mark.parametrize("trainer", [OURS, THEIRS], ids=["this Trainer", "transformers' Trainer"])
def test_check_compiles_the_step(check, trainer, tmp_path, built):
    done = check(trainer + BERT + TRAIN, "--compile", "--json", "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not been compiled by Apple's compiler" in done.stdout
    compiled = json.loads((tmp_path / "report.json").read_text())["compiled"]
    assert compiled["failures"] == []
    assert 0 < compiled["launches"] < compiled["total"] < compiled["eager"]


@pytest.mark.integration
def test_check_of_a_step_that_cannot_be_compiled_is_1(check, built):
    done = check(OURS + BERT + NO_METAL + TRAIN, "--compile")
    assert done.returncode == 1
    assert "Ready for mps" in done.stdout
    assert "not compiled: forward: " in done.stdout


def test_check_refuses_to_compile_on_a_mac(check, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    done = check("print('started')", "--compile")
    assert done.returncode == 2
    assert "started" not in done.stdout
    assert "not simulated on a Mac" in done.stderr


DISTILLS = """
import torch
device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
teacher = BertForSequenceClassification(config).eval()
weights = torch.tensor([1.0, 2.0])
MOVES
class Distilling(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], weight=weights)
        with torch.no_grad():
            target = teacher(input_ids=inputs["input_ids"]).logits
        loss = loss + torch.nn.functional.mse_loss(outputs.logits, target)
        return (loss, outputs) if return_outputs else loss
Trainer = Distilling
"""


@pytest.mark.parametrize("trainer", [OURS, THEIRS], ids=["this Trainer", "transformers' Trainer"])
@pytest.mark.parametrize(
    ("moves", "on_the_cpu"),
    [
        ("", ["weight of aten::nll_loss_forward", "BertForSequenceClassification with"]),
        ("teacher.to(device); weights = weights.to(device)", []),
        ("teacher.to('cpu'); weights = torch.ones(2, device='cpu') / weights.to(device)", []),
        ("teacher.to(device)", ["weight of aten::nll_loss_forward"]),
        ("weights = weights.to(device).softmax(0)", ["BertForSequenceClassification with"]),
    ],
)
def test_check_knows_what_a_script_moves_before_it_trains(check, trainer, moves, on_the_cpu, tmp_path):
    report = tmp_path / "report.json"
    result = check(BERT + trainer + DISTILLS.replace("MOVES", moves) + TRAIN, "--json", str(report))
    refused = [call["what"] for call in json.loads(report.read_text())["refused_calls"]]
    assert result.returncode == int(bool(on_the_cpu)), result.stdout + result.stderr
    assert len(refused) == len(on_the_cpu)
    assert all(call.startswith(named) for call, named in zip(refused, on_the_cpu, strict=True))
