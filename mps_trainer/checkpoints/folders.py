"""The checkpoint folders of a run: found, chosen to resume from, and removed when there are too many."""

from __future__ import annotations

import logging
import os
import re
import shutil

from ..errors import MisconfigurationException

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"
_FOLDER = re.compile(r"checkpoint-(\d+)")


def checkpoint_folder(output_dir: str, step: int) -> str:
    return os.path.join(output_dir, f"checkpoint-{step}")


def find_checkpoints(output_dir: str) -> list[str]:
    """Checkpoint folders in `output_dir`, the oldest step first."""
    if not os.path.isdir(output_dir):
        return []
    steps = sorted(
        int(match[1])
        for name in os.listdir(output_dir)
        if (match := _FOLDER.fullmatch(name)) and os.path.isdir(os.path.join(output_dir, name))
    )
    return [checkpoint_folder(output_dir, step) for step in steps]


def checkpoint_to_resume(requested: str | bool | None, output_dir: str) -> str | None:
    """The folder to resume from: the one named, the newest in `output_dir` for True (or "True"), or None.

    Raises:
        MisconfigurationException: if there is no such checkpoint.
    """
    if requested is None or requested is False:
        return None
    if requested is True or (str(requested).lower() == "true" and not os.path.exists(requested)):
        found = find_checkpoints(output_dir)
        if not found:
            raise MisconfigurationException(
                f"No valid checkpoint found in output directory ({output_dir}). Train without "
                "resume_from_checkpoint, or give output_dir the folder of the run to continue."
            )
        return found[-1]
    folder = os.fspath(requested)
    if not os.path.isfile(os.path.join(folder, STATE)):
        why = f"it has no {STATE}" if os.path.isdir(folder) else "there is no such folder"
        raise MisconfigurationException(
            f"Can't find a valid checkpoint at {folder}: {why}. Name a folder checkpoint-<step> that the Trainer "
            "wrote."
        )
    return folder


def put_in_place(unfinished: str, folder: str) -> None:
    """Gives a folder that is written its name; one that had the name before is removed when it has lost it."""
    replaced = f"{unfinished}.replaced"
    if os.path.isdir(folder):
        os.rename(folder, replaced)
    os.rename(unfinished, folder)
    shutil.rmtree(replaced, ignore_errors=True)


def rotate(output_dir: str, limit: int | None, kept: set[str | None], earlier: set[str]) -> None:
    """Removes the oldest checkpoints until `limit` are left; never those that are `kept`, the newest and the best.

    Those of an `earlier` run, whatever their steps, are older than all of this run.
    """
    if not limit:
        return
    found = sorted(find_checkpoints(output_dir), key=lambda folder: folder not in earlier)
    removable = [folder for folder in found if folder not in kept]
    allowed = max(limit - (len(found) - len(removable)), 0)
    for folder in removable[: len(removable) - allowed]:
        logger.info("Removing %s: save_total_limit is %d.", folder, limit)
        shutil.rmtree(folder)
