"""Where the model is uploaded to, and when."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import HubStrategy
from .fields import option


@dataclass
class HubArguments:
    push_to_hub: bool = option(False, "Upload the model to the hub each time it is saved.")
    hub_token: str | None = option(None, "Token for the upload. [the one of hf auth login]")
    hub_private_repo: bool | None = option(
        None, "Make the repository private. [public, unless the organization's are]"
    )
    hub_model_id: str | None = option(None, "Repository, as name or owner/name. [the output folder's name]")
    hub_strategy: HubStrategy | str = option(
        "every_save", "What is uploaded, and when: end, every_save, checkpoint or all_checkpoints."
    )
    hub_always_push: bool = option(False, "Upload even if the upload before is not done yet.")
    hub_revision: str | None = option(None, "Branch to upload to. [main]")
