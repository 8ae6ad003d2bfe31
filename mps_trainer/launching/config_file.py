"""Finds, reads and writes the settings file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..utils.bounded_file import read_bytes
from ..utils.home import in_home, named
from ..utils.text import sentence
from .accelerate_file import accelerate_file, is_accelerates, take_over
from .settings import DEFAULTS, InForce, LaunchSettings, read_settings

LARGEST = 50_000  # bytes; settings are a few hundred
HEADER = "# Settings of `mps-trainer launch`, written by `mps-trainer config`. Flags go before them.\n"


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Returns config.yaml in `mps_trainer` under $XDG_CONFIG_HOME or `~/.config`; None without a home folder."""
    return in_home(Path(environ.get("XDG_CONFIG_HOME") or "~/.config") / "mps_trainer" / "config.yaml")


def file_to_write(named_file: str | None, environ: Mapping[str, str]) -> Path:
    """Returns the file that was named, or the user's.

    Raises:
        MisconfigurationException: if none was named and the user has no home folder.
    """
    if named_file is not None:
        return named("--config_file", named_file)
    if (path := user_file(environ)) is None:
        raise MisconfigurationException(
            "There is no folder for the settings file: HOME is not set, and this user has no home folder. Name a "
            "file: `mps-trainer config --config_file FILE`, and the same for `mps-trainer launch`."
        )
    return path


def in_force(named_file: str | None, environ: Mapping[str, str]) -> InForce:
    """Returns the settings of the named file, else of the user's, else of Accelerate's, else none.

    Raises:
        MisconfigurationException: if the one that was named is not there, or one cannot be read or understood.
    """
    if named_file is not None:
        return load(named("--config_file", named_file))
    places = (user_file(environ), accelerate_file(environ))
    return next((load(path) for path in places if path is not None and os.path.exists(path)), InForce())


def load(path: Path) -> InForce:
    """Reads a file of settings, ours or Accelerate's. Raises MisconfigurationException where it cannot be read."""
    values = _mapping(path)
    if not is_accelerates(values):
        return InForce(read_settings(values, str(path)), path)
    return dataclasses.replace(take_over(values, str(path)), path=path)


def _mapping(path: Path) -> Mapping[Any, Any]:
    import yaml  # not for --help

    from ..utils.yaml_loader import BoundedLoader

    try:
        content = read_bytes(path, LARGEST)
    except FileNotFoundError as error:
        raise MisconfigurationException(
            f"There is no file {path}. `mps-trainer config --config_file FILE` writes one with settings."
        ) from error
    except (OSError, ValueError) as error:
        raise MisconfigurationException(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}. "
            "`mps-trainer config --config_file FILE` writes a file of settings."
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
        return {}
    if not isinstance(values, Mapping):
        raise MisconfigurationException(
            f"{path} has a {type(values).__name__} instead of settings. Write each setting as key: value."
        )
    return values


def check_target(path: Path) -> None:
    """Checks that settings can be written to `path`, before any question is asked.

    Raises:
        MisconfigurationException: if they cannot, or if the file there is not one of this package.
    """
    if path.is_fifo() or path.is_char_device():
        raise MisconfigurationException(f"{path} is a pipe or a device. Name a file with --config_file.")
    if os.path.exists(path):  # Path.exists() raises where a folder above may not be read
        try:
            foreign = load(path).is_accelerates
        except MisconfigurationException as error:
            raise MisconfigurationException(f"{error} The file was not overwritten.") from error
        if foreign:
            raise MisconfigurationException(
                f"{path} belongs to Accelerate and was not overwritten. Without --config_file, the settings go to a "
                "file of their own, which overrides Accelerate's."
            )
    folder = next(one for one in path.resolve().parents if os.path.exists(one))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise MisconfigurationException(
            f"{path} cannot be written: {folder} is not a writable folder. Name another file with --config_file."
        )


def write(settings: LaunchSettings, path: Path) -> None:
    """Writes all settings to `path` and creates its folder. An existing file is replaced in one step.

    Raises:
        MisconfigurationException: if it cannot be written; nothing is left behind then.
    """
    import yaml

    text = HEADER + yaml.safe_dump(vars(settings.over(DEFAULTS)), sort_keys=False)
    target = path.resolve()  # of a link the file that it points to, which a rename would not replace
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except OSError as error:
        raise MisconfigurationException(
            f"{path} cannot be written: {error.strerror}. Name another file with --config_file."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
