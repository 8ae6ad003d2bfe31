"""Finds, selects, commits and removes the folders of checkpoints, and what killed runs left of them."""

from __future__ import annotations

import logging
import os
import re
import shutil

from ..errors import MisconfigurationException
from ..utils.text import shown
from . import manifest
from .manifest import STATE

logger = logging.getLogger(__name__)

LOCK = ".mps_trainer.lock"
UNFINISHED = "tmp-checkpoint-"
# `.replaced` ends the name of a checkpoint while another of its step takes its place
_LEFT_OVER = re.compile(r"tmp-checkpoint-(?:([0-9]+)(\.replaced)?|removed-checkpoint-[0-9]+)")
_FOLDER = re.compile(r"checkpoint-(0|[1-9][0-9]*)")  # int() reads 0004 and ٩ as the steps of other folders


def checkpoint_folder(output_dir: str, step: int) -> str:
    return os.path.join(output_dir, f"checkpoint-{step}")


def step_of(folder: str) -> int:
    """Returns the step in the name of a checkpoint's folder; -1 for another name."""
    match = _FOLDER.fullmatch(os.path.basename(folder))
    return int(match[1]) if match else -1


def find_checkpoints(output_dir: str) -> list[str]:
    """Returns the checkpoint folders in `output_dir`, the oldest step first."""
    if not os.path.isdir(output_dir):
        return []
    names = (name for name in os.listdir(output_dir) if os.path.isdir(os.path.join(output_dir, name)))
    return [checkpoint_folder(output_dir, step) for step in sorted(map(step_of, names)) if step >= 0]


# Selection


def checkpoint_to_resume(requested: str | bool | None, output_dir: str) -> str | None:
    """Returns the whole checkpoint to resume from: the one named, for True the newest in `output_dir`, or None.

    A damaged checkpoint that is newer is skipped with a warning that says why.

    Raises:
        MisconfigurationException: if there is no such checkpoint, or the one that was named is damaged.
    """
    if requested is None or requested is False:
        return None
    if requested is True:
        return _newest_whole(output_dir)
    folder = os.fspath(requested) if isinstance(requested, os.PathLike) else requested
    if not isinstance(folder, str) or not folder or "\0" in folder:
        raise MisconfigurationException(
            f"resume_from_checkpoint is {shown(requested, 50)}, which is not a folder. Give the path of a folder "
            "checkpoint-<step>, or True for the newest one in output_dir."
        )
    if folder.lower() == "true" and not os.path.exists(folder):
        return _newest_whole(output_dir)
    why = manifest.fault(folder)
    if why is None:
        return folder
    if not os.path.isfile(os.path.join(folder, STATE)):
        raise MisconfigurationException(
            f"Can't find a valid checkpoint at {folder}: {why}. Name a folder checkpoint-<step> that the Trainer "
            "wrote."
        )
    others = find_checkpoints(os.path.dirname(os.path.abspath(folder)))
    others = [path for path in others if path != os.path.abspath(folder) and manifest.fault(path) is None]
    way_on = f"The last good checkpoint beside it is {others[-1]}." if others else "There is no good one beside it."
    if os.path.isfile(os.path.join(folder, manifest.NAME)):
        way_on += f" If you changed it on purpose, delete its {manifest.NAME}; it then loads unchecked."
    raise MisconfigurationException(f"The checkpoint {folder} is damaged: {why}. {way_on}")


def _newest_whole(output_dir: str) -> str:
    found = find_checkpoints(output_dir)
    newest, damaged = last_saved(found)
    if newest is not None:
        latest = [folder for folder in found if folder not in damaged][-1]
        if newest != latest:
            logger.warning(
                "%s was saved last, but %s has a later step: another run wrote it, or this run was resumed from an "
                "earlier step. Resuming from %s. To resume from the other one, name it in resume_from_checkpoint.",
                newest, latest, newest,
            )  # fmt: skip
        return newest
    if not damaged:
        raise MisconfigurationException(
            f"No valid checkpoint found in output directory ({output_dir}). Train without "
            "resume_from_checkpoint, or give output_dir the folder of the run to continue."
        )
    reasons = "; ".join(f"{os.path.basename(folder)}: {why}" for folder, why in damaged.items())
    raise MisconfigurationException(
        f"No valid checkpoint found in output directory ({output_dir}): all are damaged. {reasons}. Train without "
        "resume_from_checkpoint and with overwrite_output_dir, or name a checkpoint of another folder."
    )


def last_saved(found: list[str]) -> tuple[str | None, dict[str, str]]:
    """Returns the whole checkpoint of `found` that was saved last, and the faults of those saved after it.

    The numbers in their manifests order them. One without, which transformers wrote, comes after all smaller steps.
    """
    saves = {folder: manifest.entry(folder, "save") for folder in found}
    ordered = sorted((folder for folder in found if saves[folder] is not None), key=saves.__getitem__)
    for folder in found:
        if saves[folder] is None:
            smaller = [place for place, other in enumerate(ordered) if step_of(other) < step_of(folder)]
            ordered.insert(smaller[-1] + 1 if smaller else 0, folder)
    faults: dict[str, str] = {}
    for folder in reversed(ordered):
        if (why := manifest.fault(folder)) is None:
            for skipped, reason in faults.items():
                logger.warning("Skipping %s, which is damaged: %s. Resuming from %s.", skipped, reason, folder)
            return folder, faults
        faults[folder] = why
    return None, faults


# Committing


def next_save(output_dir: str) -> int:
    """Returns the number of the next save into `output_dir`: one more than the highest there."""
    return 1 + max((manifest.entry(folder, "save") or 0 for folder in find_checkpoints(output_dir)), default=0)


def commit(unfinished: str, folder: str, step: int, run: str | None = None, last_save: int | None = None) -> int:
    """Turns `unfinished` into the checkpoint `folder`: writes the manifest, flushes to disk, then renames.

    Args:
        step, run: see `manifest.write`.
        last_save: the number of the last save beside `folder`; None to read it in all manifests there.

    Returns:
        The number of this save.

    Raises:
        OSError: if the disk is full or fails; `folder` is as it was then.
    """
    number = next_save(os.path.dirname(folder)) if last_save is None else last_save + 1
    manifest.write(unfinished, step, number, run)
    for path, _, names in os.walk(unfinished):
        for name in (*names, "."):
            manifest.flush(os.path.join(path, name))
    replaced = f"{unfinished}.replaced"
    if os.path.isdir(folder):
        os.rename(folder, replaced)
    os.rename(unfinished, folder)
    manifest.flush(os.path.dirname(os.path.abspath(folder)))
    shutil.rmtree(replaced, ignore_errors=True)
    manifest.remember_intact(folder)
    return number


# Removal


def is_left_over(name: str) -> bool:
    """Returns True for the name of a lock, or of a checkpoint that a killed run had not finished writing."""
    return _LEFT_OVER.fullmatch(name) is not None or name == LOCK


def clear_left_overs(output_dir: str) -> None:
    """Removes unfinished checkpoints of a killed run and restores one that was being replaced."""
    if not os.path.isdir(output_dir):
        return
    for match in filter(None, map(_LEFT_OVER.fullmatch, sorted(os.listdir(output_dir)))):
        path = os.path.join(output_dir, match[0])
        folder = os.path.join(output_dir, f"checkpoint-{match[1]}")
        if match[2] and not os.path.exists(folder):
            os.rename(path, folder)
            logger.warning("Restored %s, which the previous run was replacing when it ended.", folder)
        else:
            shutil.rmtree(path, ignore_errors=True)
            logger.info("Removed %s, which the previous run had not finished writing.", path)


def rotate(output_dir: str, limit: int | None, kept: set[str | None], stale: set[str]) -> None:
    """Removes the oldest checkpoints until `limit` are left. Keeps those in `kept`: the newest and the best.

    `stale` ones, such as those of another run, are older than all of this run, whatever their steps.
    """
    if not limit:
        return
    found = sorted(find_checkpoints(output_dir), key=lambda folder: folder not in stale)
    places = {os.path.realpath(folder) for folder in kept if folder is not None}
    removable = [folder for folder in found if os.path.realpath(folder) not in places]
    allowed = max(limit - (len(found) - len(removable)), 0)
    for folder in removable[: max(len(removable) - allowed, 0)]:
        logger.info("Removing %s: save_total_limit is %d.", folder, limit)
        remove(folder)


def remove(folder: str) -> None:
    """Removes a checkpoint. It is renamed first, so that no partial checkpoint remains."""
    parting = os.path.join(os.path.dirname(folder), f"{UNFINISHED}removed-{os.path.basename(folder)}")
    try:
        os.rename(folder, parting)
        if os.path.islink(parting):  # the user moved the checkpoint to another disk, and keeps it there
            os.remove(parting)
        else:
            shutil.rmtree(parting)
    except OSError as error:
        logger.warning("%s could not be removed: %s.", folder, error.strerror or error)
