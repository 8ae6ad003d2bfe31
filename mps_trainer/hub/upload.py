"""Creates the repository of a model on the hub, and uploads the model and its checkpoints in the background."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..checkpoints.files import why_not_written
from ..checkpoints.folders import LOCK, UNFINISHED
from ..checkpoints.loading import read_state
from ..errors import MisconfigurationException
from ..reports import record
from ..utils.text import first_line, sentence

if TYPE_CHECKING:
    from transformers.trainer_callback import TrainerState
    from transformers.utils.hub import PushInProgress

    from ..training_args import TrainingArguments

logger = logging.getLogger(__name__)

# A report names the machine and its folders; who wants it there uploads it.
NOT_UPLOADED = ["_*", "checkpoint-*", f"{UNFINISHED}*", LOCK, record.NAME, record.PAGE, "README.before*.md"]
# The weights may be in shards, whose names an index lists.
_MODEL_FILES = ("*config.json", "model*.safetensors*", "pytorch_model*.bin*", "adapter_model.*", "training_args.bin")


class PushingTrainer(Protocol):
    """Names what uploads need of a Trainer."""

    args: TrainingArguments
    state: TrainerState
    processing_class: Any
    hub_model_id: str | None
    push_in_progress: PushInProgress | None

    @property
    def _mt_events(self) -> Any: ...  # callbacks' Events


def create_repository(args: TrainingArguments, token: str | None = None, private: bool | None = None) -> str:
    """Creates the repository if there is none yet, and returns its name as owner/name.

    Raises:
        MisconfigurationException: if the hub refuses the token or the name.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    no_connection: Any = HfHubHTTPError.__bases__  # huggingface_hub 1.0 and later raise no OSError
    name = args.hub_model_id or Path(args.output_dir).absolute().name
    token = args.hub_token if token is None else token
    private = args.hub_private_repo if private is None else private
    try:
        return HfApi().create_repo(name, token=token, private=private, exist_ok=True).repo_id
    except HfHubHTTPError as error:
        if getattr(error.response, "status_code", None) not in (401, 403):
            raise
        raise MisconfigurationException(
            f"The hub does not let this token make or write to {name}: {first_line(error)} "
            "Log in with `hf auth login` or give hub_token a token that may write, or leave out push_to_hub."
        ) from error
    except (*no_connection, OSError, ValueError) as error:  # or no token, no such name
        raise MisconfigurationException(
            f"push_to_hub=True with hub_model_id={name!r} failed: {sentence(error)} Give hub_model_id a name such "
            "as ada/boats and check that the hub can be reached, or leave out push_to_hub."
        ) from error


def upload_folder(
    trainer: PushingTrainer,
    message: str | None,
    blocking: bool = False,
    token: str | None = None,
    revision: str | None = None,
    **settings: Any,
) -> Any:
    """Uploads the output folder without its checkpoints.

    Args:
        token, revision: default `args.hub_token`, `args.hub_revision`.
        settings: more of `HfApi.upload_folder`, such as another folder.

    Returns:
        huggingface_hub's CommitInfo or, unless `blocking`, a Future of one.
    """
    from huggingface_hub import HfApi

    args = trainer.args
    given: dict[str, Any] = {
        "repo_id": trainer.hub_model_id,
        "folder_path": args.output_dir,
        "commit_message": message,
        "token": args.hub_token if token is None else token,
        "run_as_future": not blocking,
        "revision": args.hub_revision if revision is None else revision,
        "ignore_patterns": NOT_UPLOADED,
    }
    return HfApi().upload_folder(**{**given, **settings})


def push_checkpoint(trainer: PushingTrainer, checkpoint: str) -> None:
    """Starts the uploads that `args.hub_strategy` asks for at a save.

    While an earlier push goes on nothing is uploaded, unless `args.hub_always_push`.
    """
    args, push = trainer.args, trainer.push_in_progress
    pending = push if push is not None and not push.is_done() else None
    if args.hub_strategy == "end" or (pending is not None and not args.hub_always_push):
        return
    warn_of_failures(trainer)
    trainer._mt_events.fire("on_push_begin")
    try:
        copy_model_files(checkpoint, args.output_dir, trainer.processing_class)
    except Exception as error:
        if (why := why_not_written(error, args.output_dir)) is None:
            raise
        logger.warning("%s is not uploaded, because it was not copied to %s: %s.", checkpoint, args.output_dir, why)
        return
    try:
        state = read_state(checkpoint)  # the run may be at a later step by now
    except MisconfigurationException:  # an override wrote another file; the upload needs only its message
        state = vars(trainer.state)
    unit = f"step {state['global_step']}" if args.save_strategy == "steps" else f"epoch {int(state['epoch'] or 0)}"
    message = f"Training in progress, {unit}"
    jobs = [upload_folder(trainer, message)]
    if args.hub_strategy in ("checkpoint", "all_checkpoints"):
        name = "last-checkpoint" if args.hub_strategy == "checkpoint" else Path(checkpoint).name
        place: dict[str, Any] = {"folder_path": checkpoint, "path_in_repo": name, "ignore_patterns": None}
        jobs.append(upload_folder(trainer, f"{message}, checkpoint", **place))
    if pending is not None:
        pending.jobs.extend(jobs)
        return
    from transformers.utils.hub import PushInProgress

    trainer.push_in_progress = PushInProgress(jobs)


def warn_of_failures(trainer: PushingTrainer, wait: bool = False) -> None:
    """Warns of each upload that failed: of those that are done or, with `wait`, of all."""
    push = trainer.push_in_progress
    if push is not None and wait and not push.is_done():
        logger.info("Waiting for the upload of the last checkpoint, which may take some minutes.")
    for job in push.jobs if push else []:
        error = job.exception() if wait or job.done() else None
        if error is not None:
            logger.warning(
                "An upload to %s failed: %s. The files are in %s; trainer.push_to_hub() uploads them again.",
                trainer.hub_model_id,
                error,
                trainer.args.output_dir,
            )


def copy_model_files(checkpoint: str, output_dir: str, processing_class: Any) -> None:
    """Copies the model of a checkpoint into the output folder, which the upload sends."""
    for path in Path(checkpoint).iterdir():
        if path.is_file() and any(path.match(pattern) for pattern in _MODEL_FILES):
            shutil.copy(path, output_dir)
    if hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(output_dir)
