"""Finds, reads and writes the settings file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import MisconfigurationException
from ..utils.bounded_file import read_bytes
from ..utils.home import in_home, named
from ..utils.text import sentence
from .accelerate_file import MARKS, accelerate_file, convert
from .settings import DEFAULTS, Settings, read_settings

LARGEST = 50_000  # bytes; settings are a few hundred
HEADER = "# Settings of `mps-trainer launch`, written by `mps-trainer config`. Flags go before them.\n"


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, their file (None for none), and the keys of the file that are ignored, each with the reason."""

    settings: Settings = field(default_factory=dict)
    path: Path | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)
    is_accelerates: bool = False


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Returns config.yaml in `mps_trainer` under $XDG_CONFIG_HOME or `~/.config`; None without a home folder."""
    return in_home(Path(environ.get("XDG_CONFIG_HOME") or "~/.config") / "mps_trainer" / "config.yaml")


def in_force(named_file: str | None, environ: Mapping[str, str]) -> LoadedSettings:
    """Returns the settings of the named file, else of the user's, else of Accelerate's, else none.

    Raises:
        MisconfigurationException: if the one that was named is not there, or one cannot be read or understood.
    """
    if named_file is not None:
        return load(named("--config_file", named_file))
    places = (user_file(environ), accelerate_file(environ))
    return next((load(path) for path in places if path is not None and os.path.exists(path)), LoadedSettings())


def load(path: Path) -> LoadedSettings:
    """Reads a file of settings, ours or Accelerate's. Raises MisconfigurationException where it cannot be read."""
    import yaml  # --help does without it

    from ..utils.yaml_loader import BoundedLoader

    try:
        content = read_bytes(path, LARGEST)
    except (OSError, ValueError) as error:
        why = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}."
        if isinstance(error, FileNotFoundError):
            why = f"There is no file {path}."
        raise MisconfigurationException(
            f"{why} `mps-trainer config --config_file FILE` writes a file of settings."
        ) from error
    try:
        values = yaml.load(content.decode(), Loader=BoundedLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = getattr(error, "problem", None) or sentence(error)
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        at = "" if line is None else f" in line {line + 1}"
        raise MisconfigurationException(
            f"{path} is not valid YAML{at}: {str(reason).rstrip('.')}. Correct it, or remove it and run "
            "`mps-trainer config`."
        ) from error
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise MisconfigurationException(
            f"{path} has a {type(values).__name__} instead of settings. Write each setting as key: value."
        )
    if any(mark in values for mark in MARKS):
        settings, ignored = convert(values, str(path))
        return LoadedSettings(settings, path, ignored, is_accelerates=True)
    return LoadedSettings(read_settings(values, str(path)), path)


def load_target(path: Path) -> LoadedSettings | None:
    """Returns the settings in the file that will be written, None if it does not exist yet.

    Raises:
        MisconfigurationException: if it cannot be written, or if the file there is not one of this package.
    """
    if path.is_fifo() or path.is_char_device():
        raise MisconfigurationException(f"{path} is a pipe or a device. Name a file with --config_file.")
    loaded = None
    if os.path.exists(path):  # Path.exists() raises where a folder above may not be read
        try:
            loaded = load(path)
        except MisconfigurationException as error:
            raise MisconfigurationException(f"{error} The file was not overwritten.") from error
        if loaded.is_accelerates:
            raise MisconfigurationException(
                f"{path} belongs to Accelerate and was not overwritten. Without --config_file, the settings go to a "
                "file of their own, which overrides Accelerate's."
            )
    folder = next(one for one in path.resolve().parents if os.path.exists(one))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise MisconfigurationException(
            f"{path} cannot be written: {folder} is not a writable folder. Name another file with --config_file."
        )
    return loaded


def write(settings: Settings, path: Path) -> None:
    """Writes all settings to `path` and creates its folder. An existing file is replaced in one step.

    Raises:
        MisconfigurationException: if it cannot be written; nothing is left behind then.
    """
    import yaml

    text = HEADER + yaml.safe_dump({**DEFAULTS, **settings}, sort_keys=False)
    target = path.resolve()  # a rename would replace a link instead of its target
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except OSError as error:
        raise MisconfigurationException(
            f"{path} cannot be written: {error.strerror}. Name another file with --config_file."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
