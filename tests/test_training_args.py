"""TrainingArguments: no device, folder or torch until asked; then one decision, and what follows from it."""

import copy
import logging
import pickle
import warnings
from dataclasses import dataclass, replace

import pytest
import torch

import mps_trainer.training_args
from mps_trainer import DeviceUnavailableError, MachineFacts, TrainingArguments
from tests import run_python
from tests.arguments.test_argument_parser import Extended
from tests.launching.test_processes import GPUS, MAC, PC


@pytest.fixture
def on_machine(monkeypatch):
    """Lets the arguments see another machine; the list that comes back has an entry for each look at it."""

    def put(facts: MachineFacts) -> list[MachineFacts]:
        looks: list[MachineFacts] = []
        module = mps_trainer.training_args
        monkeypatch.setattr(module, "gather_facts", lambda memory_limit: looks.append(facts) or facts)
        return looks

    return put


NOTHING_HAPPENS = """
import os, sys
before = sorted(os.listdir("."))
import mps_trainer, mps_trainer.cli
from mps_trainer import TrainingArguments
args = TrainingArguments("run", eval_strategy="steps", lr_scheduler_type="cosine", report_to="wandb", bf16=True)
args.to_json_string(), repr(args), args.to_sanitized_dict(), args.get_warmup_steps(10), args.train_batch_size
mps_trainer.MPSAccelerator()
facts = mps_trainer.MachineFacts(torch_version="2.9.0", cuda_built=True, cuda_count=2)
decision = mps_trainer.resolve(mps_trainer.DeviceRequest(), facts)
str(decision), decision.to_dict()
heavy = ("torch", "transformers", "numpy", "datasets", "lightning", "ctypes", "asyncio")
heavy = [name for name in heavy if name in sys.modules]
assert not heavy, heavy
assert "decision" not in vars(args) and "device" not in vars(args)
assert sorted(os.listdir(".")) == before == []
args.device
assert "torch" in sys.modules and "transformers" not in sys.modules
assert sorted(os.listdir(".")) == []
"""


@pytest.mark.integration
def test_building_arguments_and_resolving_import_no_torch_touch_no_device_and_make_no_folder(tmp_path):
    result = run_python("-c", NOTHING_HAPPENS, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_device_is_decided_on_first_access_once_and_logged_once(on_machine, caplog):
    looks = on_machine(MAC)
    caplog.set_level(logging.INFO, "mps_trainer")
    args = TrainingArguments()
    assert caplog.records == []
    assert args.device == args.device == torch.device("mps")
    args._n_gpu = 0  # transformers' search with Ray sets it
    assert (args.n_gpu, args.world_size, args.process_index, args.should_save) == (1, 1, 0, True)
    assert looks == [MAC]
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert record.getMessage().startswith("Training runs on mps: ")
    assert "not cpu: available" in record.getMessage()


def test_a_note_is_a_warning(on_machine, caplog):
    on_machine(GPUS)
    assert TrainingArguments().device == torch.device("cuda:0")
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "torchrun" in record.getMessage()


@pytest.mark.parametrize(
    ("facts", "settings", "device", "n_gpu"),
    [
        (MAC, {"accelerator": "cpu"}, "cpu", 0),
        (MAC, {"use_cpu": True, "ddp_backend": "gloo"}, "cpu", 0),
        (GPUS, {"devices": [1]}, "cuda:1", 1),
        (PC, {"use_cpu": True, "use_mps_device": True}, "cpu", 0),
    ],
)
@pytest.mark.filterwarnings("ignore:`use_mps_device:FutureWarning")
def test_what_is_asked_for_reaches_the_decision(on_machine, facts, settings, device, n_gpu):
    on_machine(facts)
    args = TrainingArguments(**settings)
    assert (args.device, args.n_gpu) == (torch.device(device), n_gpu)
    assert args.parallel_mode.value == "not_parallel"


@pytest.mark.parametrize("facts", [PC, GPUS, replace(MAC, mps_allocation_ok=False, mps_available=False)])
def test_use_mps_device_is_never_a_quiet_run_on_something_else(on_machine, facts):
    on_machine(facts)
    with pytest.warns(FutureWarning, match="use_mps_device"):
        args = TrainingArguments(use_mps_device=True)
    with pytest.raises(DeviceUnavailableError, match=r"cannot run here.*What to do: "):
        _ = args.device
    with pytest.raises(DeviceUnavailableError):  # still, on the second try
        _ = args.n_gpu


@pytest.mark.parametrize("asked", ["device", "world_size", "n_gpu", "should_save", "parallel_mode"])
def test_a_machine_that_does_not_fit_is_refused_when_the_device_is_asked_for(on_machine, asked):
    looks = on_machine(MAC)
    args = TrainingArguments(ddp_backend="gloo")
    assert looks == []
    with pytest.raises(ValueError, match=r"ddp_backend='gloo' cannot be used on mps.*Take 'mlx'"):
        getattr(args, asked)


def test_main_process_first_is_nothing_in_one_process(on_machine):
    on_machine(PC)
    with TrainingArguments().main_process_first(desc="nothing"):
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("kind", [TrainingArguments, Extended])
@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda args: pickle.loads(pickle.dumps(args))])
def test_the_arguments_can_be_copied_before_and_after_the_device_is_known(kind, decided, duplicate):
    args = kind("run", use_cpu=True, lr_scheduler_kwargs={"num_cycles": 2}, eval_strategy="epoch", label_names=["y"])
    if decided:
        _ = args.device
    twin = duplicate(args)
    assert twin == args
    assert type(twin) is kind
    assert twin.eval_strategy is args.eval_strategy
    assert twin.device == torch.device("cpu")


NAMES = ("gradient_checkpointing", "activation_checkpointing")


@pytest.mark.parametrize("kind", [TrainingArguments, Extended])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", NAMES)
@pytest.mark.parametrize("is_on", [True, False])
def test_a_copy_switches_activation_checkpointing_by_either_name(kind, name, given, is_on):
    args = kind(**{given: is_on, f"{given}_kwargs": {"early_stop": True}})
    assert [getattr(args, each) for each in NAMES] == [is_on, is_on]
    switched = replace(args, **{name: not is_on, f"{name}_kwargs": {"early_stop": False}})
    assert [getattr(switched, each) for each in NAMES] == [not is_on, not is_on]
    assert [getattr(switched, f"{each}_kwargs") for each in NAMES] == [{"early_stop": False}] * 2
    for same in (replace(switched, run_name="again"), replace(switched, **{name: not is_on})):
        assert [getattr(same, each) for each in NAMES] == [not is_on, not is_on]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda args: pickle.loads(pickle.dumps(args))])
def test_setting_one_name_of_activation_checkpointing_sets_the_other(name, duplicate):
    args = duplicate(TrainingArguments())
    for value in (True, False):
        setattr(args, name, value)
        assert [getattr(args, each) for each in NAMES] == [value, value]
    setattr(args, f"{name}_kwargs", {"use_reentrant": True})
    assert [getattr(args, f"{each}_kwargs") for each in NAMES] == [{"use_reentrant": True}] * 2


def test_a_new_choice_of_device_in_a_copy_is_decided_anew(on_machine):
    on_machine(MAC)
    args = TrainingArguments()
    assert args.device == torch.device("mps")
    assert replace(args, use_cpu=True).device == torch.device("cpu")


def test_tokens_are_not_written_down():
    @dataclass
    class WithToken(TrainingArguments):
        hub_token: str | None = None

    args = WithToken(hub_token="secret")
    for text in (args.to_json_string(), str(args.to_sanitized_dict()), TrainingArguments.__str__(args)):
        assert "secret" not in text
        assert "<HUB_TOKEN>" in text


def test_settings_that_json_lacks_become_text():
    args = TrainingArguments(lr_scheduler_kwargs={"dtype": torch.float32})
    assert '"dtype": "torch.float32"' in args.to_json_string()


def test_printed_arguments_have_a_line_for_each_field():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = str(TrainingArguments("run")).splitlines()
    assert lines[0] == "TrainingArguments("
    assert "output_dir='run'," in lines
    assert lines[1:-1] == sorted(lines[1:-1])


def test_an_unknown_word_for_metrics_is_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="include_for_metrics: foo is unknown and ignored"):
        assert TrainingArguments("out", include_for_metrics=["foo", "inputs"]).include_for_metrics == ["foo", "inputs"]
