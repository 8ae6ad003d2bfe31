"""transformers is imported without what few models use, and everything is there when it is used."""

import json
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest

from mps_trainer import lazy_imports
from mps_trainer.lazy_imports import LazyName

EXAMPLE = Path(__file__).parents[1] / "examples" / "text-classification" / "run_glue.py"
NOT_NEEDED = ("scipy", "sklearn", "peft", "accelerate", "sympy", "pandas", "pyarrow", "datasets", "evaluate", "pygal")
NOT_NEEDED_OF_TORCH = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.distributed.checkpoint")
LOADED = f"sorted({{*sys.modules}} & {{*{(*NOT_NEEDED, *NOT_NEEDED_OF_TORCH)!r}}})"


def in_new_process(code, *arguments):
    """Returns what `code` prints as JSON. It runs in a process of its own, because imports stay."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", f"import json, sys\n{code}", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.strip().splitlines()[-1])


@pytest.mark.integration
def test_the_trainer_is_imported_without_what_few_models_use():
    assert in_new_process(f"from mps_trainer import Trainer\nprint(json.dumps({LOADED}))") == []


@pytest.mark.integration
def test_the_example_begins_its_first_step_without_what_few_models_use(tmp_path):
    code = f"""
import runpy, torch
def seen(module, inputs):
    if type(module).__name__.startswith("Bert"):
        print(json.dumps({LOADED}), flush=True)
        import os
        os._exit(0)
torch.nn.modules.module.register_module_forward_pre_hook(seen)
sys.argv = sys.argv[1:]
sys.path.insert(0, {str(EXAMPLE.parent)!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    settings = ["--embedded", "--task_name", "mrpc", "--max_steps", 1, "--output_dir", tmp_path / "out"]
    assert in_new_process(code, EXAMPLE, *settings) == []


@pytest.mark.integration
def test_nothing_is_left_to_load_once_the_compiler_is():
    code = """
from mps_trainer import Trainer
import builtins, torch
from mps_trainer import lazy_imports
waiting = len(lazy_imports._waiting)
bare = [each.__qualname__ for each in lazy_imports._bare]
import importlib.util
importlib.util.find_spec("torch._dynamo")  # does not load it
plain = [builtins.__import__.__module__, torch.compiler.disable.__module__, torch.compiler.allow_in_graph.__module__]
import torch._dynamo
left = [
    f"{module}.{name}"
    for module, loaded in list(sys.modules.items())
    for name, value in list(vars(loaded).items())
    if type(value) is lazy_imports.LazyName and value._module.split(".")[0] not in lazy_imports.NOT_COMPILED
]
kept = [hasattr(torch.optim.Optimizer.zero_grad.__wrapped__, "__dynamo_disable")]
from transformers.modeling_utils import PreTrainedModel
allowed = torch._dynamo.trace_rules.is_callable_allowed(PreTrainedModel.can_record_outputs.fget)
print(json.dumps([waiting > 20, bare, plain, left, kept, allowed, torch._dynamo.__name__]))
"""
    waiting, bare, plain, left, kept, allowed, name = in_new_process(code)
    assert waiting
    assert "Optimizer.add_param_group" in bare
    assert plain == ["builtins", "torch.compiler", "torch.compiler"]
    assert (left, kept, allowed, name) == ([], [False], True, "torch._dynamo")


@pytest.mark.integration
def test_nothing_is_lazy_where_the_compiler_is_loaded_before():
    code = """
import torch._dynamo
from mps_trainer import Trainer
from mps_trainer import lazy_imports
print(json.dumps([len(lazy_imports._waiting), len(lazy_imports._bare)]))
"""
    assert in_new_process(code) == [0, 0]


@pytest.mark.integration
def test_several_threads_import_at_once():
    code = """
import builtins, threading
import mps_trainer
from mps_trainer import lazy_imports
errors = []
def use():
    try:
        mps_trainer.Trainer
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import torch
plain = builtins.__import__.__module__, torch.compiler.disable.__module__
print(json.dumps([errors, plain, "_dynamo" in vars(torch)]))
"""
    assert in_new_process(code) == [[], ["builtins", "torch.compiler"], False]


@pytest.mark.integration
def test_a_model_is_saved_and_loaded_in_pieces(tmp_path):
    code = """
from mps_trainer import Trainer
import torch
from transformers import AutoModel, BertConfig, BertModel
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
model = BertModel(BertConfig(**sizes)).eval()
model.save_pretrained(sys.argv[1], max_shard_size="1KB")
loaded = AutoModel.from_pretrained(sys.argv[1], device_map="auto")
tokens = torch.ones(1, 3, dtype=torch.int64)
print(json.dumps(torch.equal(loaded(tokens).last_hidden_state, model(tokens).last_hidden_state)))
"""
    assert in_new_process(code, tmp_path) is True


def test_code_without_a_module_imports_meanwhile():
    seen = {}
    with lazy_imports._lazily():
        exec("from math import pi\nfrom math import *", seen)
    assert seen["pi"] == seen["tau"] / 2


@pytest.mark.integration
def test_a_model_is_compiled_and_an_optimizer_steps_after_lazy_imports():
    code = """
from mps_trainer import Trainer
import torch
from transformers import BertConfig, BertForSequenceClassification
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
model = BertForSequenceClassification(BertConfig(**sizes)).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.ones(2, 4, dtype=torch.int64)
expected = model(tokens).logits
before = "torch._dynamo" in sys.modules
compiled = torch.compile(model, backend="eager")
found = compiled(tokens).logits
found.sum().backward()
optimizer.step()
optimizer.zero_grad()
print(json.dumps([before, torch.equal(found, expected), "torch._dynamo" in sys.modules]))
"""
    assert in_new_process(code) == [False, True, True]


@pytest.mark.integration
def test_what_is_loaded_late_is_what_the_modules_would_have_had():
    code = """
from mps_trainer import Trainer
import numpy, torch
from transformers.loss import loss_for_object_detection
from transformers import trainer_utils
before = "scipy" in sys.modules
rows, columns = loss_for_object_detection.linear_sum_assignment(numpy.array([[3.0, 1.0], [1.0, 3.0]]))
from scipy.optimize import linear_sum_assignment
is_same = loss_for_object_detection.linear_sum_assignment is linear_sum_assignment
is_peft = trainer_utils._is_peft_model(torch.nn.Linear(2, 2)), "peft" in sys.modules
import peft
from transformers import BertConfig, BertModel
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
adapted = peft.get_peft_model(BertModel(BertConfig(**sizes)), peft.LoraConfig(target_modules=["query"]))
print(json.dumps([before, columns.tolist(), is_same, is_peft, trainer_utils._is_peft_model(adapted)]))
"""
    assert in_new_process(code) == [False, [1, 0], True, [False, False], True]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that can be imported and is not."""
    code = "class Shape:\n    sides = 4\n\n    def __init__(self, n=1): self.n = n\n"
    (tmp_path / "late_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield "late_module"
    sys.modules.pop("late_module", None)


def test_a_test_of_types_does_not_load(module):
    shape = LazyName(module, "Shape", {})
    assert not isinstance(3, shape)
    assert not isinstance(3, (str, shape))
    assert not issubclass(int, shape)
    assert not hasattr(shape, "__wrapped__")
    assert module not in sys.modules


@pytest.mark.parametrize(
    "use",
    [
        lambda shape: shape(3).n == 3,
        lambda shape: shape.sides == 4,
        lambda shape: isinstance(types.new_class("Square", (shape,))(), shape),
        lambda shape: {shape: 1}[sys.modules["late_module"].Shape] == 1,
        lambda shape: shape == sys.modules["late_module"].Shape if hash(shape) else None,
    ],
    ids=["call", "attribute", "subclass", "key", "equal"],
)
def test_a_use_loads(module, use):
    user = {}
    user["Shape"] = user["Alias"] = shape = LazyName(module, "Shape", user)
    assert use(shape)
    assert user["Shape"] is user["Alias"] is sys.modules[module].Shape


def test_a_copy_by_pickle_is_the_real_one(module):
    assert pickle.loads(pickle.dumps(LazyName(module, "Shape", {}))) is sys.modules[module].Shape


def test_what_does_not_exist_is_an_error_where_it_is_used(module):
    with pytest.raises(ImportError):
        LazyName(module, "Circle", {})()


def test_annotations_with_a_name_that_is_not_loaded(module):
    shape = LazyName(module, "Shape", {})
    assert str in (shape | str).__args__
    assert type(None) in (None | shape).__args__
    assert module not in sys.modules


@pytest.mark.integration
def test_datasets_is_loaded_by_what_uses_it():
    code = """
from mps_trainer.lazy_imports import LazyModule, import_transformers
import_transformers("transformers.trainer", "transformers.trainer_seq2seq")
import transformers.trainer
before = [type(transformers.trainer.datasets) is LazyModule, "datasets" in sys.modules, "pandas" in sys.modules]
kind = transformers.trainer.datasets.Dataset
import datasets
after = [transformers.trainer.datasets is datasets, kind is datasets.Dataset]
print(json.dumps([before, after]))
"""
    assert in_new_process(code) == [[True, False, False], [True, True]]


@pytest.mark.integration
def test_the_compiler_does_not_load_what_it_leaves_to_python():
    code = """
from mps_trainer import Trainer
import torch._dynamo
loaded = sorted({"scipy", "sklearn", "datasets", "pandas"} & {*sys.modules})
from transformers.loss import loss_for_object_detection as loss
used = loss.linear_sum_assignment([[1, 0], [0, 1]])
print(json.dumps([loaded, [each.tolist() for each in used]]))
"""
    assert in_new_process(code) == [[], [[0, 1], [1, 0]]]
