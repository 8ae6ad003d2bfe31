"""Imports transformers' models without what few of them use, which is loaded when it is used.

`import transformers.modeling_utils` loads scipy, PEFT, Accelerate, torch's compiler and `DTensor`, whether a model
needs them or not. That takes longer than `import torch`.

Once torch's compiler is loaded, almost all the rest is loaded too: the compiler has to find the real classes in the
functions that it compiles.

Gain, by `python -m benchmarks startup`: the first step of the embedded example comes after 0.6 of the time.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, Union
from unittest import mock

LAZY = (
    "accelerate",
    "peft",
    "scipy",
    "sklearn",
    "torch._dynamo",
    "torch.distributed._composable",
    "torch.distributed._functional_collectives",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.attention.flex_attention",
    "transformers.distributed.expert_parallel",
    "transformers.distributed.tensor_parallel",
)
MODULES = (
    "transformers.modeling_utils",
    "transformers.generation.utils",
    "transformers.trainer_utils",
    "transformers.training_args",
)
WHOLE = ("datasets",)  # which a module imports as a whole, to ask whether something is one of its objects
NOT_COMPILED = ("scipy", "sklearn")  # 60 MB of functions that the compiler leaves to Python
_COMPILER = "torch._dynamo"
_one_at_a_time = threading.RLock()
_waiting: list[LazyName] = []
_allowed: list[Any] = []  # functions that the compiler is to take into its graphs as they are
_bare: list[Any] = []  # functions that are called without asking the compiler to leave them alone


def import_transformers(*modules: str) -> None:
    """Imports what all models of transformers import, and `modules`, lazily where that has not been done before."""
    with _one_at_a_time:
        _import(modules)


def _import(modules: tuple[str, ...]) -> None:
    wanted = [name for name in (*MODULES, *modules) if name not in sys.modules]
    if not wanted:
        return
    import torch

    if _COMPILER in sys.modules:  # which most of the time goes into, and which takes no stand-ins
        return
    if not _waiting:
        sys.meta_path.insert(0, _AfterCompiler())
        call_bare(vars(torch.optim.Optimizer).values())
    with _lazily():
        with contextlib.suppress(ImportError):  # of a transformers without it
            _ask_before_loading(importlib.import_module("transformers.distributed.utils"))
        for name in wanted:
            importlib.import_module(name)


def call_bare(functions: Any) -> None:
    """Makes those of the functions that are hidden from torch's compiler run without loading it.

    torch loads its compiler at the first call of such a function, to tell it that it is to leave the function alone.
    """
    if _COMPILER in sys.modules:
        return
    for each in functions:
        hidden = getattr(each, "__wrapped__", None)
        if hidden is not None and getattr(each, "__globals__", {}).get("__name__") == "torch._compile":
            hidden.__dynamo_disable = hidden
            _bare.append(hidden)


def load_all() -> None:
    """Loads what has been waiting for its first use."""
    while _bare:
        vars(_bare.pop()).pop("__dynamo_disable", None)
    while _waiting:
        with contextlib.suppress(ImportError, AttributeError):  # raised where it is used
            _waiting.pop().load()
    while _allowed:
        sys.modules[_COMPILER].allow_in_graph(_allowed.pop())


class LazyName:
    """Stands for a name of a module that is not loaded. Calls, attributes, comparisons and subclasses load it.

    A test whether something is an instance of it does not: while the module is not loaded, nothing is.
    """

    def __init__(self, module: str, name: str, user: dict[str, Any]) -> None:
        self._module, self._name, self._user = module, name, user

    def load(self) -> Any:
        """Returns what the name stands for, after putting it into the module that uses it."""
        module = importlib.import_module(self._module)
        try:
            value = getattr(module, self._name)
        except AttributeError:
            value = importlib.import_module(f"{self._module}.{self._name}")
        while isinstance(value, LazyName):  # the module has it from another one
            value = value.load()
        for name in [name for name, each in self._user.items() if each is self]:
            self._user[name] = value
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.load()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asks what kind of object this is
            raise AttributeError(name)
        return getattr(self.load(), name)

    def __instancecheck__(self, instance: Any) -> bool:
        return self._module in sys.modules and isinstance(instance, self.load())

    def __subclasscheck__(self, subclass: Any) -> bool:
        return self._module in sys.modules and issubclass(subclass, self.load())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.load(),)

    def __or__(self, other: Any) -> Any:
        return Union[Any, other]  # noqa: UP007 - in annotations

    __ror__ = __or__

    def __floordiv__(self, other: Any) -> Any:
        return self.load() // other

    def __rfloordiv__(self, other: Any) -> Any:
        return other // self.load()

    def __mul__(self, other: Any) -> Any:
        return self.load() * other

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self.load() == other)

    def __hash__(self) -> int:
        return hash(self.load())

    def __reduce__(self) -> Any:
        return _loaded, (self._module, self._name)


class LazyModule(ModuleType):
    """Stands for a module that is not loaded, in the module that imports it. Its attributes load it.

    torch's compiler does not: nothing that it compiles uses one.
    """

    def __init__(self, name: str, user: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__["_user"] = user

    def load(self) -> ModuleType:
        """Returns the module, after putting it into the one that uses it."""
        module = importlib.import_module(self.__name__)
        for name in [name for name, each in self._user.items() if each is self]:
            self._user[name] = module
        return module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.load(), name)


def _loaded(module: str, name: str) -> Any:
    return LazyName(module, name, {}).load()


@contextlib.contextmanager
def _lazily() -> Iterator[None]:
    """Makes `from module import name` lazy at the top level of transformers' modules, for the modules in `LAZY`."""
    import torch

    plain = builtins.__import__

    def lazy_import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        of_transformers = globals and globals is locals and _is_in("transformers", globals.get("__name__", ""))
        if of_transformers and not fromlist and name in WHOLE and name not in sys.modules:
            return LazyModule(name, globals)
        if of_transformers and fromlist:
            module = importlib.util.resolve_name("." * level + name, globals["__package__"]) if level else name
            if module not in sys.modules and any(_is_in(each, module) for each in LAZY):
                return SimpleNamespace(**{each: _stand_in(module, each, globals) for each in fromlist})
        return plain(name, globals, locals, fromlist, level)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(builtins, "__import__", lazy_import))
        stack.enter_context(mock.patch.object(torch.compiler, "disable", _disable))
        stack.enter_context(mock.patch.object(torch.compiler, "allow_in_graph", _allow_in_graph))
        vars(torch).setdefault("_dynamo", _DECORATORS)
        try:
            yield
        finally:
            if vars(torch)["_dynamo"] is _DECORATORS:
                del torch._dynamo


def _is_in(package: str, module: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _stand_in(module: str, name: str, user: dict[str, Any]) -> LazyName:
    made = LazyName(module, name, user)
    if not any(_is_in(each, module) for each in NOT_COMPILED):
        _waiting.append(made)
    return made


def _disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    import torch

    return torch._disable_dynamo(fn, recursive)  # loads the compiler at the first call


def _allow_in_graph(fn: Any) -> Any:
    _allowed.append(fn)
    return fn


def _assume_constant_result(fn: Any) -> Any:
    fn._dynamo_marked_constant = True
    return fn


# What transformers' modules use of the compiler while they are loaded.
_DECORATORS = SimpleNamespace(
    disable=_disable, allow_in_graph=_allow_in_graph, assume_constant_result=_assume_constant_result
)


def _ask_before_loading(utils: ModuleType) -> None:
    """Makes transformers' test for sharded tensors say False while their module is not loaded."""
    test: Callable[[Any], bool] | None = getattr(utils, "is_dtensor", None)
    if test is not None:
        utils.is_dtensor = lambda obj: "torch.distributed.tensor" in sys.modules and test(obj)  # type: ignore[attr-defined]


class _AfterCompiler(MetaPathFinder):
    """Loads what is waiting as soon as torch's compiler has been loaded."""

    _is_asking = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _COMPILER or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            load_all()

        loader.exec_module = exec_module
        return spec
