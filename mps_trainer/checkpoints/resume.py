"""Decides which checkpoint a run resumes.

After a restart by `mps-trainer --restarts` or torchrun it is the run's own newest one, otherwise the one that the user
requests. Loads no torch, because the supervisor asks, too.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from ..errors import MisconfigurationException
from ..utils.text import shown
from . import manifest
from .folders import find_checkpoints, step_of
from .manifest import STATE

if TYPE_CHECKING:
    from ..distributed.processes import Processes
    from ..guards.supervised import SupervisedRun

logger = logging.getLogger(__name__)


def checkpoint_to_resume(
    requested: str | bool | None, output_dir: str, supervised: SupervisedRun | None, processes: Processes
) -> str | None:
    """Returns the checkpoint that a run resumes, the same in all processes; None to start from the beginning.

    Args:
        requested: a checkpoint, True for the newest in `output_dir`, or None.
        supervised: the run as its supervisor knows it, which says whether this is a restart. `is_restarted` becomes
            False if the restart has no checkpoint to resume: the run then does what its first start did.

    Raises:
        MisconfigurationException: if there is no such checkpoint, or the requested one is damaged.
    """
    if supervised is not None:
        own = processes.first_does(lambda: _own_checkpoint(supervised, output_dir))
        supervised.is_restarted = own is not None
        if own is not None:
            return own
    return processes.first_does(lambda: requested_checkpoint(requested, output_dir))


# After a restart


def checkpoints_of_run(output_dir: str, run_id: str) -> list[str]:
    """Returns the checkpoints of one run under a supervisor, the last one saved at the end. They may be damaged."""
    return _in_order_of_saving(
        [each for each in find_checkpoints(output_dir) if manifest.entry(each, "run") == run_id]
    )


def _own_checkpoint(run: SupervisedRun, output_dir: str) -> str | None:
    """Returns the newest whole checkpoint that the run saved before a restart. Warns if the announced one is gone."""
    if not run.is_restarted or run.run_id is None:
        return None
    newest, _ = _newest_whole(checkpoints_of_run(output_dir, run.run_id))
    if newest is None and run.announced is not None:
        logger.warning(
            "Training does not go on from %s, which is damaged, or gone, or in another folder than %s. To resume at a "
            "restart, give output_dir the same name at each start, without the time, and do not empty it.",
            run.announced, output_dir,
        )  # fmt: skip
    return newest


# At the request of the user


def requested_checkpoint(requested: str | bool | None, output_dir: str) -> str | None:
    """Returns the whole checkpoint that is requested: the one named, for True the newest in `output_dir`, or None.

    A damaged checkpoint that is newer is skipped with a warning that says why.

    Raises:
        MisconfigurationException: if there is no such checkpoint, or the one that was named is damaged.
    """
    if requested is None or requested is False:
        return None
    if requested is True:
        return _newest_in(output_dir)
    folder = os.fspath(requested) if isinstance(requested, os.PathLike) else requested
    if not isinstance(folder, str) or not folder or "\0" in folder:
        raise MisconfigurationException(
            f"resume_from_checkpoint is {shown(requested, 50)}, which is not a folder. Give the path of a folder "
            "checkpoint-<step>, or True for the newest one in output_dir."
        )
    if folder.lower() == "true" and not os.path.exists(folder):
        return _newest_in(output_dir)
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


def _newest_in(output_dir: str) -> str:
    found = find_checkpoints(output_dir)
    newest, faults = _newest_whole(_in_order_of_saving(found))
    if newest is not None:
        latest = [folder for folder in found if folder not in faults][-1]
        if newest != latest:
            logger.warning(
                "%s was saved last, but %s has a later step: another run wrote it, or this run was resumed from an "
                "earlier step. Resuming from %s. To resume from the other one, name it in resume_from_checkpoint.",
                newest, latest, newest,
            )  # fmt: skip
        return newest
    if not faults:
        raise MisconfigurationException(
            f"No valid checkpoint found in output directory ({output_dir}). Train without "
            "resume_from_checkpoint, or give output_dir the folder of the run to continue."
        )
    reasons = "; ".join(f"{os.path.basename(folder)}: {why}" for folder, why in faults.items())
    raise MisconfigurationException(
        f"No valid checkpoint found in output directory ({output_dir}): all are damaged. {reasons}. Train without "
        "resume_from_checkpoint and with overwrite_output_dir, or name a checkpoint of another folder."
    )


# The order of saves


def _in_order_of_saving(checkpoints: list[str]) -> list[str]:
    """Returns `checkpoints`, which are in the order of their steps, in the order in which they were saved.

    The numbers in their manifests say it. One without, which transformers wrote, comes after all smaller steps.
    """
    saves = {folder: manifest.entry(folder, "save") for folder in checkpoints}
    ordered = sorted((folder for folder in checkpoints if saves[folder] is not None), key=saves.__getitem__)
    for folder in checkpoints:
        if saves[folder] is None:
            smaller = [place for place, other in enumerate(ordered) if step_of(other) < step_of(folder)]
            ordered.insert(smaller[-1] + 1 if smaller else 0, folder)
    return ordered


def _newest_whole(ordered: list[str]) -> tuple[str | None, dict[str, str]]:
    """Returns the last checkpoint without a fault, and the faults of later ones. Warns about them."""
    faults: dict[str, str] = {}
    for folder in reversed(ordered):
        if (why := manifest.fault(folder)) is None:
            for skipped, reason in faults.items():
                logger.warning("Skipping %s, which is damaged: %s. Resuming from %s.", skipped, reason, folder)
            return folder, faults
        faults[folder] = why
    return None, faults
