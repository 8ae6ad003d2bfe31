"""Lists the files of a checkpoint with their checksums, and finds files that were damaged later. Loads no torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import time
import zipfile
from typing import Any

from safetensors import SafetensorError, safe_open

from ..errors import MisconfigurationException
from . import schema
from .files import damaged, read_json

NAME = "manifest.json"
STATE = "trainer_state.json"  # every checkpoint has one
WEIGHTS = "model.safetensors"
_ARCHIVES = (".pt", ".pth", ".bin")  # torch.save writes a zip file
_IS_WEIGHTS = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
_IS_READ = re.compile(
    r"(optimizer|optimizer_rest|scheduler|scaler)\.pt|rng_state(_\d+)?\.pth|loop_state\.json|adapter_model\.\w+"
)
_intact: dict[str, tuple] = {}  # folders without a fault, as they were then: a large checkpoint is not read twice


def write(folder: str, step: int, save: int, run: str | None = None) -> None:
    """Writes the manifest of the files in `folder`. It replaces an existing manifest in one step.

    Args:
        step: the step of the run.
        save: the number of the save among those into the same output folder, from 1. It orders checkpoints, which
            the clock does not where it was set back, and the step does not after another run.
        run: the id of a run under a supervisor, which resumes from its own checkpoints only.
    """
    files = {name: {"size": os.path.getsize(path), "sha256": checksum(path)} for name, path in _files(folder)}
    unfinished = os.path.join(folder, f"{NAME}.tmp")
    content: dict[str, Any] = {"version": 1, "step": step, "save": save, "written": time.time(), "files": files}
    if run is not None:
        content["run"] = run
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
    flush(unfinished)
    os.replace(unfinished, os.path.join(folder, NAME))


def remember_intact(folder: str) -> None:
    """Notes that `folder` has no fault as it is now, so that its files are not read for it again."""
    _intact[folder] = _signature(folder)


def renew(folder: str, step: int) -> None:
    """Writes the manifest again if the files changed since: a callback may change them at on_save."""
    path = os.path.join(folder, NAME)
    if not os.path.isfile(path) or _intact.get(folder) == _signature(folder):
        return
    before: Any = {}
    with contextlib.suppress(MisconfigurationException):  # read() would refuse what a callback added
        before = read_json(path)
    save = before.get("save")
    write(folder, step, save if schema.fits(save, schema.Size) else 1, before.get("run"))
    remember_intact(folder)


def flush(path: str) -> None:
    """Flushes a file's contents, or a folder's list of names, to disk.

    Raises:
        OSError: if the disk is full or fails, which writing alone does not always show.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if sys.platform == "darwin":
            # fsync there leaves the data in the drive's own cache, which a battery that dies takes with it
            import fcntl

            with contextlib.suppress(OSError):  # some file systems lack it
                fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
                return
        if os.name != "nt" or not os.path.isdir(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: str) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _files(folder: str) -> list[tuple[str, str]]:
    """Returns names, with / between folders, and paths of all files but the manifest itself."""
    paths = sorted(os.path.join(path, name) for path, _, names in os.walk(folder) for name in names)
    named = ((os.path.relpath(path, folder).replace(os.sep, "/"), path) for path in paths)
    return [(name, path) for name, path in named if name != NAME]


def _signature(folder: str) -> tuple:
    own = os.path.join(folder, NAME)
    paths = [path for _, path in _files(folder)] + ([own] if os.path.isfile(own) else [])
    looks = ((path, os.stat(path)) for path in paths)
    return tuple((path, look.st_size, look.st_mtime_ns, look.st_ino) for path, look in looks)


# The manifest and the weights


def read(folder: str) -> dict[str, Any]:
    """Returns the manifest of `folder`.

    Raises:
        MisconfigurationException: for a file that is damaged, or that `write` cannot have written.
    """
    path = os.path.join(folder, NAME)
    content: dict[str, Any] = schema.read(path, schema.Manifest)
    files = content["files"]
    for name in files:
        if "\0" in name or {"", ".", ".."}.intersection(name.split("/")):
            raise damaged(path, ValueError("it lists a file outside the folder"))
    needed = [STATE, *(name for name in sorted(os.listdir(folder)) if _IS_READ.fullmatch(name))]
    if not any(map(is_weights, files)):
        needed += weight_files(folder)[:1]
    for name in needed:
        if name not in files:
            raise damaged(path, ValueError(f"it does not list {name}"))
    return content


def entry(folder: str, name: str) -> Any:
    """Returns an entry of the manifest; None if it has none or is damaged.

    `save` is the number of the save, `run` the id of a run under a supervisor.
    """
    try:
        return read(folder).get(name)
    except (MisconfigurationException, OSError):
        return None


def is_weights(name: str) -> bool:
    """Returns True for the name of a weight file or of an index of transformers."""
    return _IS_WEIGHTS.fullmatch(name) is not None


def weight_files(folder: str) -> list[str]:
    """Returns the names of the files with the weights: safetensors, or pickles of tensors alone.

    Raises:
        MisconfigurationException: if they have an index that is damaged, or that names a file outside the folder.
    """
    for name in (WEIGHTS, "pytorch_model.bin"):
        if os.path.isfile(os.path.join(folder, name)):
            return [name]
        if os.path.lexists(index := os.path.join(folder, f"{name}.index.json")):
            return sorted(set(schema.read(index, schema.WeightsIndex)["weight_map"].values()))
    return []


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
    new, old = (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more" for names in (others, before))
    return f"{new} replaced {old}, and there is no checksum to verify them"


# Faults


def fault(folder: str) -> str | None:
    """Returns a clause that names the damaged file of a checkpoint and its fault; None for an intact checkpoint.

    With a manifest, every listed file has to be there, byte by byte; other files are ignored. Without one, as
    transformers writes it, no file may be truncated, as far as its format shows that.
    """
    if not os.path.isdir(folder):
        return "there is no such folder"
    if not os.path.isfile(os.path.join(folder, STATE)):
        return f"it has no {STATE}"
    try:
        for name, path in _files(folder):
            if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would wait for the process that writes to it
                return f"{name} is not a regular file"
        now = _signature(folder)
        if _intact.get(folder) == now:
            return None
        found = _fault_of_files(folder)
    except OSError as error:
        return f"{error.filename or folder} cannot be read: {error.strerror or error}"
    if found is None:
        _intact[folder] = now
    return found


def _fault_of_files(folder: str) -> str | None:
    listed: dict[str, Any] = {}
    unlisted = [name for name, _ in _files(folder)]
    if os.path.lexists(os.path.join(folder, NAME)):
        try:
            listed = read(folder)["files"]
        except MisconfigurationException:
            return f"{NAME} is damaged"
        try:
            unlisted = [name for name in weight_files(folder) if name not in listed]  # they were converted
        except MisconfigurationException:
            return "the index of the weights is damaged"
    for name in unlisted:
        if (why := _fault_of_form(name, os.path.join(folder, name))) is not None:
            return why
    for name, expected in listed.items():
        path = os.path.join(folder, *name.split("/"))
        if not os.path.isfile(path):
            if unlisted and is_weights(name):
                continue
            return f"{name} is missing"
        if os.path.getsize(path) != expected["size"]:
            return f"{name} has {os.path.getsize(path):,} bytes instead of {expected['size']:,}"
        if checksum(path) != expected["sha256"]:
            return f"{name} is not what was saved: its checksum differs from the one in {NAME}"
    return None


def _fault_of_form(name: str, path: str) -> str | None:
    """Returns the fault of a file that has no checksum, as far as its format shows one."""
    if not os.path.isfile(path):
        return f"{name} is missing"
    is_whole = True
    try:
        if name == STATE or name.endswith(".index.json"):
            is_whole = ("global_step" if name == STATE else "weight_map") in read_json(path)
        elif name.endswith(".safetensors"):
            with safe_open(path, "pt"):  # its header says how long the file is
                pass
        elif name.endswith(_ARCHIVES) and not zipfile.is_zipfile(path):
            with open(path, "rb") as file:  # other formats, as of an older torch.save, are not checked
                is_whole = file.read(2) not in (b"PK", b"P", b"")
    except (MisconfigurationException, SafetensorError, TypeError):
        is_whole = False
    return None if is_whole else f"{name} is damaged or truncated"
