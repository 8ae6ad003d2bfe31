"""Lists a checkpoint's files with sizes and checksums; the list is the last file written into it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
import zipfile
from typing import Any

from ..errors import MisconfigurationException
from .storage.files import damaged, flush, read_object
from .storage.schema import Kind, check, is_amount, is_count, is_size, or_none
from .storage.weights import is_weights, weight_files

NAME = "manifest.json"
STATE = "trainer_state.json"  # every checkpoint has one
_VERSION = 1
_LARGEST_HEADER = 100_000_000  # bytes, as safetensors has it
_ARCHIVES = (".pt", ".pth", ".bin")  # what torch.save writes: a zip file
_whole: dict[str, tuple] = {}  # folders found whole, as they were then: a large checkpoint is not read twice


def write(folder: str, step: int, save: int) -> None:
    """Writes the manifest of the files in `folder`. It replaces an existing manifest in one step.

    Args:
        step: the step of the run.
        save: the number of the save among those into the same output folder, from 1. It orders checkpoints, which
            the clock does not where it was set back, and the step does not after another run.
    """
    files = {name: {"size": os.path.getsize(path), "sha256": checksum(path)} for name, path in _files(folder)}
    unfinished = os.path.join(folder, f"{NAME}.tmp")
    content = {"version": _VERSION, "step": step, "save": save, "written": time.time(), "files": files}
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
    flush(unfinished)
    os.replace(unfinished, os.path.join(folder, NAME))


def renew(folder: str, step: int) -> None:
    """Writes the manifest again if the files changed since: a callback may change them at on_save."""
    if os.path.isfile(os.path.join(folder, NAME)) and _whole.get(folder) != _signature(folder):
        number: Any = None
        with contextlib.suppress(MisconfigurationException):  # not read(), which may refuse what a callback has added
            number = read_object(os.path.join(folder, NAME), []).get("save")
        write(folder, step, number if is_size(number) else 1)
        note_whole(folder)


def note_whole(folder: str) -> None:
    """Remembers that the files in `folder` match its manifest."""
    _whole[folder] = _signature(folder)


def written(folder: str) -> float | None:
    """Returns when the manifest was written, in seconds since 1970; None if it does not say or is damaged."""
    return _entry(folder, "written")


def save_number(folder: str) -> int | None:
    """Returns the number of the save; None if the manifest is damaged or of a release without numbers."""
    return _entry(folder, "save")


def _entry(folder: str, name: str) -> Any:
    try:
        return read(folder).get(name)
    except (MisconfigurationException, OSError):
        return None


def read(folder: str) -> dict[str, Any]:
    """Returns the manifest of `folder`.

    Raises:
        MisconfigurationException: for a file that is damaged, or that `write` cannot have written.
    """
    path = os.path.join(folder, NAME)
    content = read_object(path, ["files"])
    check(path, content, _VALUES)
    if STATE not in content["files"]:
        raise damaged(path, ValueError(f"it does not list {STATE}"))
    for name in sorted(os.listdir(folder)):
        if _IS_READ.fullmatch(name) and name not in content["files"]:
            raise damaged(path, ValueError(f"it does not list {name}"))
    if not any(map(is_weights, content["files"])) and (found := weight_files(folder)):
        raise damaged(path, ValueError(f"it does not list {found[0]}"))
    return content


def converted(folder: str) -> str | None:
    """Returns a clause that names weights files that replaced the saved ones, or None."""
    try:
        listed = read(folder)["files"]
        others = [name for name in weight_files(folder) if name not in listed]
    except MisconfigurationException:
        return None
    if not others:
        return None
    before = [name for name in listed if is_weights(name) and not name.endswith(".index.json")]
    return f"{_some(others)} replaced {_some(before)}, and there is no checksum to verify them"


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def fault(folder: str) -> str | None:
    """Returns a clause that names the damaged file of a checkpoint and its fault; None for an intact checkpoint.

    With a manifest, every listed file has to be there, byte by byte; other files are ignored. Without one, as
    transformers writes it, no file may be cut off, as far as its format shows that.
    """
    if not os.path.isdir(folder):
        return "there is no such folder"
    if not os.path.isfile(os.path.join(folder, STATE)):
        return f"it has no {STATE}"
    try:
        for name, path in _files(folder):
            if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would wait for whoever writes to it
                return f"{name} is not a regular file"
        now = _signature(folder)
        if _whole.get(folder) == now:
            return None
        listed = os.path.lexists(os.path.join(folder, NAME))
        found = _fault_of_listed(folder) if listed else _fault_of_unlisted(folder)
    except OSError as error:
        return f"{error.filename or folder} cannot be read: {error.strerror or error}"
    if found is None:
        _whole[folder] = now
    return found


def checksum(path: str) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _files(folder: str) -> list[tuple[str, str]]:
    """Returns names, with / between folders, and paths of all files but the manifest itself."""
    found = []
    for path, _, names in os.walk(folder):
        found += [os.path.join(path, name) for name in names]
    named = ((os.path.relpath(path, folder).replace(os.sep, "/"), path) for path in sorted(found))
    return [(name, path) for name, path in named if name != NAME]


def _signature(folder: str) -> tuple:
    looks = [(name, os.stat(path)) for name, path in _files(folder)]
    manifest = os.path.join(folder, NAME)
    if os.path.isfile(manifest):
        looks.append((NAME, os.stat(manifest)))
    return tuple((name, look.st_size, look.st_mtime_ns, look.st_ino) for name, look in looks)


def _is_file(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and is_count(entry.get("size"))
        and isinstance(entry.get("sha256"), str)
        and _SHA256.fullmatch(entry["sha256"]) is not None
    )


def _are_files(files: Any) -> bool:
    return isinstance(files, dict) and all(_is_inside(name) and _is_file(entry) for name, entry in files.items())


def _is_inside(name: str) -> bool:
    return "\0" not in name and not {"", ".", ".."}.intersection(name.split("/"))


_SHA256 = re.compile("[0-9a-f]{64}")
_IS_READ = re.compile(
    r"(optimizer|optimizer_rest|scheduler|scaler)\.pt|rng_state(_\d+)?\.pth|loop_state\.json|adapter_model\.\w+"
)
_VALUES: dict[str, Kind] = {
    "files": (_are_files, "a table of files"),
    "step": (or_none(is_count), "a step"),
    "save": (or_none(is_size), "the number of a save"),
    "written": (or_none(is_amount), "a time"),
}


def _fault_of_listed(folder: str) -> str | None:
    try:
        files = read(folder)["files"]
    except MisconfigurationException:
        return f"{NAME} is damaged"
    try:
        weights = weight_files(folder)
    except MisconfigurationException:
        return "the index of the weights is damaged"
    converted = [name for name in weights if name not in files]
    for name in converted:
        if (why := _fault_of_form(name, os.path.join(folder, name))) is not None:
            return why
    for name, entry in files.items():
        path = os.path.join(folder, *name.split("/"))
        if not os.path.isfile(path):
            if converted and is_weights(name):
                continue
            return f"{name} is missing"
        if os.path.getsize(path) != entry["size"]:
            return f"{name} has {os.path.getsize(path):,} bytes instead of {entry['size']:,}"
        if checksum(path) != entry["sha256"]:
            return f"{name} is not what was saved: its checksum differs from the one in {NAME}"
    return None


def _fault_of_unlisted(folder: str) -> str | None:
    for name, path in _files(folder):
        if name == STATE or name.endswith(".index.json"):
            try:
                read_object(path, ["global_step"] if name == STATE else ["weight_map"])
            except MisconfigurationException:
                return f"{name} is damaged"
            continue
        if (why := _fault_of_form(name, path)) is not None:
            return why
    return None


def _fault_of_form(name: str, path: str) -> str | None:
    if not os.path.isfile(path):
        return f"{name} is missing"
    is_cut_off = name.endswith(".safetensors") and not _is_whole_safetensors(path)
    if is_cut_off or (name.endswith(_ARCHIVES) and not _is_whole_archive(path)):
        return f"{name} is truncated or damaged"
    return None


def _is_whole_archive(path: str) -> bool:
    """Returns False for a truncated zip file, else True. Other formats, as of an older torch.save, are not checked."""
    with open(path, "rb") as file:
        begin = file.read(2)
    return zipfile.is_zipfile(path) or begin not in (b"PK", b"P", b"")


def _is_whole_safetensors(path: str) -> bool:
    """Returns True if the file is as long as its header says: 8 bytes of length, header, tensors."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _LARGEST_HEADER):
            return False
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return size == 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return False
