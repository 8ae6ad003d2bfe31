"""Checkpoints and uploads."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import HubStrategy, SaveStrategy
from .fields import option
from .readers import read_steps


@dataclass
class CheckpointingArguments:
    """Checkpoints: when to write them, which to keep, and which is best."""

    save_strategy: SaveStrategy | str = option("steps", "When to save: no, steps, epoch or best.")
    save_steps: float = option(
        500, "Steps between two checkpoints; below 1, a fraction of all steps.", ge=0, read=read_steps
    )
    save_total_limit: int | None = option(None, "Maximum number of checkpoints; the best one is kept. [all]", ge=0)
    save_only_model: bool = option(
        False, "Save only the weights; training cannot resume exactly from such a checkpoint."
    )
    save_on_each_node: bool = option(False, "With several machines, save on one process of each.")
    load_best_model_at_end: bool = option(False, "Load the weights of the best checkpoint after training.")
    metric_for_best_model: str | None = option(None, "Metric that selects the best checkpoint. [loss]")
    greater_is_better: bool | None = option(
        None, "True if a higher metric is better. [false if its name ends in loss]"
    )
    save_async: bool = option(True, "Write checkpoints in the background, where that is safe.", kw_only=True)
    save_on_signal: bool = option(
        True,
        "On SIGINT, SIGTERM and SIGHUP, finish the step and save a checkpoint before the process ends.",
        kw_only=True,
    )
    enable_jit_checkpoint: bool = option(False, "Save a checkpoint on SIGTERM.")
    restore_callback_states_from_checkpoint: bool = option(
        False, "On resume, restore the state of callbacks from the checkpoint."
    )


@dataclass
class HubArguments:
    """Uploads to the hub."""

    push_to_hub: bool = option(False, "Upload the model to the hub each time it is saved.")
    hub_token: str | None = option(None, "Token for the upload. [the token of hf auth login]")
    hub_private_repo: bool | None = option(
        None, "Make the repository private. [public, or the organization's default]"
    )
    hub_model_id: str | None = option(None, "Repository, as name or owner/name. [the name of the output folder]")
    hub_strategy: HubStrategy | str = option(
        "every_save", "When and what to upload: end, every_save, checkpoint or all_checkpoints."
    )
    hub_always_push: bool = option(False, "Upload even if the previous upload is not finished.")
    hub_revision: str | None = option(None, "Branch to upload to. [main]")
