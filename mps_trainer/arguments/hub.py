"""Uploads to the hub."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import HubStrategy
from .fields import option


@dataclass
class HubArguments:
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
