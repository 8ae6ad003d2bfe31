"""`replace_transformers` replaces transformers' Trainer and arguments, unless something was built on them before."""

import importlib
import runpy
import sys
import types

import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from tqdm import tqdm
from transformers import PrinterCallback

import mps_trainer
from tests import run_python
from tests.conftest import refusal

from .conftest import bert_classifier, sentences

PLACES = {
    "transformers": ["Trainer", "TrainingArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments"],
    "transformers.trainer": ["Trainer", "TrainingArguments"],
    "transformers.training_args": ["TrainingArguments"],
    "transformers.trainer_seq2seq": ["Seq2SeqTrainer", "Trainer"],
    "transformers.training_args_seq2seq": ["Seq2SeqTrainingArguments", "TrainingArguments"],
}
QUIET = {"use_cpu": True, "report_to": "none"}


@pytest.fixture
def replaced():
    """Imports the module. At the end, transformers' names are its own again."""
    module = importlib.import_module("mps_trainer.replace_transformers")
    module.replace()
    yield module
    module.undo()


def classes() -> list[tuple[str, type]]:
    return [(name, getattr(sys.modules[module], name)) for module, names in PLACES.items() for name in names]


def test_names_of_transformers_are_replaced_and_restored_by_undo(replaced):
    assert all(kind is getattr(mps_trainer, name) for name, kind in classes())
    for _ in range(2):  # a second undo changes nothing
        replaced.undo()
        assert all(kind.__module__.startswith("transformers.") for _, kind in classes())
    assert issubclass(transformers.Seq2SeqTrainer, transformers.Trainer)


def test_progress_callback_is_replaced_too(replaced, tmp_path):
    from transformers.trainer_callback import ProgressCallback

    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=False)
    trainer = transformers.Trainer(bert_classifier(), args)
    assert trainer.callback_handler.callbacks[-1].__class__ is ProgressCallback is transformers.ProgressCallback
    replaced.undo()
    assert transformers.ProgressCallback.__module__ == "transformers.trainer_callback"


def test_callbacks_that_a_library_put_into_transformers_are_used(replaced, tmp_path, monkeypatch):
    """ms-swift replaces them, to evaluate and save after the last step and to log to a file."""

    class Bar(transformers.ProgressCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.training_bar = tqdm(total=state.max_steps)
            self.current_step = 0

    def made(**settings):
        args = transformers.TrainingArguments(str(tmp_path), **QUIET, max_steps=2, logging_steps=1, **settings)
        return transformers.Trainer(bert_classifier(), args, train_dataset=sentences(), eval_dataset=sentences(8))

    def own_of(trainer):
        return {Flow, Bar, Printer} & {callback.__class__ for callback in trainer.callback_handler.callbacks}

    Flow, Printer = (type("Own", (kind,), {}) for kind in (transformers.DefaultFlowCallback, PrinterCallback))
    own = {"DEFAULT_CALLBACKS": [Flow], "DEFAULT_PROGRESS_CALLBACK": Bar, "PrinterCallback": Printer}
    for name, kind in own.items():
        monkeypatch.setattr(f"transformers.trainer.{name}", kind)
    assert own_of(made(disable_tqdm=True)) == {Flow, Printer}
    trainer = made(disable_tqdm=False, eval_strategy="steps")
    assert own_of(trainer) == {Flow, Bar}
    trainer.train()
    assert len(trainer.state.log_history) == 5
    replaced.undo()
    assert own_of(mps_trainer.Trainer(bert_classifier(), mps_trainer.TrainingArguments(**QUIET))) == set()


@pytest.mark.parametrize("clears", [False, True])
def test_undo_after_reload_restores_classes(replaced, monkeypatch, capsys, clears):
    """`importlib.reload` keeps the variables of a module; the autoreload of notebooks clears them before."""
    monkeypatch.setattr(sys.modules["__main__"], "Trainer", transformers.Trainer, raising=False)
    monkeypatch.setitem(sys.modules, "trl", types.ModuleType("trl"))  # imported in time
    if clears:
        kept = {name: vars(replaced)[name] for name in ("__name__", "__loader__", "__spec__", "__package__")}
        vars(replaced).clear()
        vars(replaced).update(kept)
    capsys.readouterr()
    importlib.reload(replaced)
    assert capsys.readouterr().err == ""
    assert transformers.Trainer is mps_trainer.Trainer
    replaced.undo()
    assert all(kind.__module__.startswith("transformers.") for _, kind in classes())


@pytest.mark.parametrize("library", ["trl", "sentence_transformers", "setfit"])
def test_replacing_after_a_library_is_refused(replaced, monkeypatch, library):
    replaced.undo()
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    assert f"too late: {library} was imported" in refusal(replaced.replace)
    assert transformers.Trainer is not mps_trainer.Trainer


def test_replacing_after_a_subclass_or_import_of_the_script_is_refused(replaced, monkeypatch):
    replaced.undo()
    module = types.ModuleType("some_library")
    module.Own = type("Own", (transformers.Trainer,), {"__module__": "some_library"})
    monkeypatch.setitem(sys.modules, "some_library", module)
    assert "some_library defined Own" in refusal(replaced.replace)
    monkeypatch.delitem(sys.modules, "some_library")
    monkeypatch.setattr(sys.modules["__main__"], "Trainer", transformers.Trainer, raising=False)
    assert "this script imported Trainer" in refusal(replaced.replace)


def test_accelerate_state_exists_once_there_are_arguments(replaced, tmp_path):
    AcceleratorState._reset_state(reset_partial_state=True)
    args = transformers.TrainingArguments(str(tmp_path), **QUIET)
    assert args.distributed_state.device == torch.device("cpu")
    assert args.distributed_state.distributed_type == "NO"
    assert args.accelerator_config.use_configured_state is False
    again = transformers.TrainingArguments(str(tmp_path), **QUIET, accelerator_config={"use_configured_state": True})
    assert again.accelerator_config.use_configured_state
    transformers.Trainer(bert_classifier(), args)
    set_seed(3, device_specific=True)
    one = torch.rand(1)
    set_seed(3)
    assert torch.equal(one, torch.rand(1))


def test_accelerate_state_has_precision_of_arguments(replaced, tmp_path):
    for bf16 in (False, True):
        args = transformers.TrainingArguments(str(tmp_path), **QUIET, bf16=bf16)
        transformers.Trainer(bert_classifier(), args)
        assert AcceleratorState().mixed_precision == ("bf16" if bf16 else "no")


def test_arguments_of_transformers_own_class_are_refused_in_one_line(tmp_path):
    theirs = transformers.TrainingArguments(str(tmp_path), **QUIET)
    assert "TrainingArguments from mps_trainer" in refusal(mps_trainer.Trainer, bert_classifier(), theirs)


LAZY = """
import sys
import mps_trainer.replace_transformers as replaced
assert not {"torch", "transformers", "numpy", "huggingface_hub"} & set(sys.modules)
from transformers import ProgressCallback, TrainingArguments
assert TrainingArguments.__module__ == "mps_trainer.training_args"
assert ProgressCallback.__module__ == "mps_trainer.callbacks.progress"
assert not {"datasets", "transformers.trainer"} & set(sys.modules)  # they read variables, too
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, trainer
from transformers.trainer_seq2seq import Trainer as Base
from transformers.training_args import TrainingArguments as Same
assert Same is TrainingArguments and Base is Trainer
assert issubclass(Seq2SeqTrainer, Trainer) and Trainer.__module__ == "mps_trainer.trainer"
assert issubclass(Seq2SeqTrainingArguments, TrainingArguments)
replaced.undo()
import transformers
import transformers.models.bert.modeling_bert  # a later import replaces nothing
from transformers.trainer_seq2seq import Trainer
assert Trainer is transformers.Trainer is transformers.Seq2SeqTrainer.__base__
assert transformers.TrainingArguments is transformers.Seq2SeqTrainingArguments.__base__
kinds = Trainer, trainer.DEFAULT_PROGRESS_CALLBACK, *transformers.Seq2SeqTrainingArguments.__mro__[:2]
assert all(kind.__module__.startswith("transformers.") for kind in kinds), kinds
"""


TRANSFORMERS_FIRST = """
import transformers as theirs
import mps_trainer.replace_transformers
from transformers import Trainer, TrainingArguments, BertConfig, BertForSequenceClassification
import transformers
kinds = Trainer, TrainingArguments, theirs.Trainer, theirs.TrainingArguments, transformers.TrainingArguments
assert all(kind.__module__.startswith("mps_trainer.") for kind in kinds), kinds
"""


@pytest.mark.integration
@pytest.mark.parametrize("script", [LAZY, TRANSFORMERS_FIRST])
def test_classes_are_replaced_when_the_script_imports_transformers(tmp_path, script):
    ran = run_python("-c", script, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_running_the_module_is_refused_because_it_runs_no_script(replaced):
    with pytest.raises(SystemExit, match="Use `mps-trainer run SCRIPT`"):
        runpy.run_module("mps_trainer.replace_transformers", run_name="__main__")
