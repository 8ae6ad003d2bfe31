"""The list of a checkpoint's files with their sizes and checksums, the last file that is written into it."""

from __future__ import annotations

import hashlib
import json
import os
import time
import zipfile
from typing import Any

from ..errors import MisconfigurationException
from .durable import flush
from .files import read_object

NAME = "manifest.json"
STATE = "trainer_state.json"  # every checkpoint has one
_VERSION = 1
_MOST = 1 << 53  # times and numbers of saves are below; more would not come back from JSON as it was
_ARCHIVES = (".pt", ".pth", ".bin")  # what torch.save writes: a zip file
_whole: dict[str, tuple] = {}  # folders found whole, as they were then: a large checkpoint is not read twice


def write(folder: str, step: int, save: int) -> None:
    """Writes the manifest of what is in `folder` now. There is a manifest at all times, if there was one before.

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
    """Writes the manifest again if the files are not those that were sealed: a callback may change them at on_save."""
    if os.path.isfile(os.path.join(folder, NAME)) and _whole.get(folder) != _signature(folder):
        write(folder, step, save_number(folder) or 1)
        note_whole(folder)


def note_whole(folder: str) -> None:
    """Remembers that the files in `folder` are, as they are now, those of its manifest."""
    _whole[folder] = _signature(folder)


def written(folder: str) -> float | None:
    """Returns when the manifest was written, in seconds since 1970; None if it does not say."""
    when = _entry(folder, "written")
    is_time = isinstance(when, (int, float)) and 0 <= when < _MOST
    return float(when) if is_time else None


def save_number(folder: str) -> int | None:
    """Returns the number of the save; None if the manifest does not say, as those of earlier releases."""
    number = _entry(folder, "save")
    return number if type(number) is int and 0 < number < _MOST else None


def _entry(folder: str, name: str) -> Any:
    try:
        return read_object(os.path.join(folder, NAME), [name])[name]
    except (MisconfigurationException, OSError):
        return None


def fault(folder: str) -> str | None:
    """What is wrong with a checkpoint, as a clause that names the file; None for a whole one.

    One with a manifest has to have every file in it, byte by byte; further files are nobody's business. One without,
    which transformers wrote, has to have files that are not cut off, as far as their formats show that.
    """
    if not os.path.isdir(folder):
        return "there is no such folder"
    if not os.path.isfile(os.path.join(folder, STATE)):
        return f"it has no {STATE}"
    try:
        now = _signature(folder)
        if _whole.get(folder) == now:
            return None
        listed = os.path.isfile(os.path.join(folder, NAME))
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
    """Names, with / between folders, and paths of all files but the manifest itself."""
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


def _fault_of_listed(folder: str) -> str | None:
    try:
        files = read_object(os.path.join(folder, NAME), ["files"])["files"]
        wanted = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
    except (MisconfigurationException, AttributeError, KeyError, TypeError, ValueError):
        return f"{NAME} is damaged"
    for name, (size, digest) in wanted.items():
        path = os.path.join(folder, *name.split("/"))
        if not os.path.isfile(path):
            return f"{name} is missing"
        if os.path.getsize(path) != size:
            return f"{name} has {os.path.getsize(path):,} bytes instead of {size:,}"
        if checksum(path) != digest:
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
        is_cut_off = name.endswith(".safetensors") and not _is_whole_safetensors(path)
        if is_cut_off or (name.endswith(_ARCHIVES) and not _is_whole_archive(path)):
            return f"{name} is cut off or damaged"
    return None


def _is_whole_archive(path: str) -> bool:
    """Whether a zip file has its end. What is no zip file, as an older torch.save wrote, says nothing of itself."""
    with open(path, "rb") as file:
        begin = file.read(2)
    return zipfile.is_zipfile(path) or begin not in (b"PK", b"P", b"")


def _is_whole_safetensors(path: str) -> bool:
    """Whether the file is as long as its header says: eight bytes of length, the header, the tensors."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            return False
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return size == 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return False
