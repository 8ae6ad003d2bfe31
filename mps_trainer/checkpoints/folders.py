"""Finds, commits and removes the folders of checkpoints, and what killed runs left of them. Loads no torch."""

from __future__ import annotations

import logging
import os
import re
import shutil

from . import manifest

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

    `stale` ones, such as checkpoints of another run, are older than all of this run, whatever their steps.
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
