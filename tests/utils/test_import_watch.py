"""A watch calls functions when a package is imported, and does not change the package's modules and specs."""

import importlib
import importlib.util
import sys

import pytest

from mps_trainer.utils.import_watch import is_watched, stop_watching, watch_imports, when_imported


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose module `outer` needs its module `inner`, and a library that needs `outer`."""
    (tmp_path / "watched_package").mkdir()
    for name, text in {
        "watched_package/__init__.py": "",
        "watched_package/inner.py": "value = 1\n",
        "watched_package/outer.py": "from .inner import value\nfrom . import inner\ndone = True\n",
        "watched_package/broken.py": "from . import inner\n1 / 0\n",
        "watched_library.py": "from watched_package.outer import value\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    stop_watching("test")
    for name in [name for name in sys.modules if name.startswith("watched_")]:
        del sys.modules[name]


def test_functions_are_called_around_the_outermost_import_of_a_package(package):
    calls = []

    def note(event):
        outer = sys.modules.get("watched_package.outer")
        calls.append((event, hasattr(outer, "done"), "watched_package.inner" in sys.modules))

    watch_imports("test", ["watched_package"], before=lambda: note("before"), after=lambda: note("after"))
    import watched_library

    assert watched_library.value == 1
    assert calls[-2:] == [("before", False, False), ("after", True, True)]
    assert len(calls) == 4  # the package, and its module with the one inside
    stop_watching("test")
    importlib.reload(sys.modules["watched_package.inner"])
    assert len(calls) == 4


def test_a_failed_import_ends_too(package):
    calls = []
    watch_imports("test", ["watched_package"], before=lambda: calls.append(1), after=lambda: calls.append(-1))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("watched_package.broken")
    assert calls == [1, -1, 1, -1]


def test_what_a_function_imports_is_part_of_the_import(package):
    calls = []

    def after():
        calls.append("after")
        importlib.import_module("watched_package.outer")

    watch_imports("test", ["watched_package"], after=after)
    importlib.import_module("watched_package.inner")
    assert calls == ["after"]  # the import of the package, inside which all others were


def test_modules_and_specs_are_as_without_a_watch(package):
    plain = importlib.util.find_spec("watched_package")
    watch_imports("test", ["watched_package"], after=list)
    looked_up = importlib.util.find_spec("watched_package")
    assert looked_up.loader.get_filename() == plain.loader.get_filename() == looked_up.origin
    assert "watched_package" not in sys.modules
    module = importlib.import_module("watched_package.inner")
    assert type(module.__loader__) is type(module.__spec__.loader) is type(plain.loader)


def test_each_function_is_called_once_with_its_module_at_once_or_when_it_is_imported(package):
    got = []
    importlib.import_module("watched_package.inner")
    work = {"watched_package.outer": got.append, "watched_package.inner": got.append}
    assert not is_watched("watched_package")
    with when_imported("test", work), when_imported("another", dict(work)):  # two watches ask each other
        assert is_watched("watched_package")
        inner = sys.modules["watched_package.inner"]
        assert got == [inner, inner]
        outer = importlib.import_module("watched_package.outer")
        assert got == [inner, inner, outer, outer]
        importlib.reload(outer)
        assert len(got) == 4
    assert not is_watched("watched_package")
