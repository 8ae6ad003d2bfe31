"""The methods of the Trainer that write the model's card and upload it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..hub import card, upload
from .base import TrainerBase


class Hub(TrainerBase):
    """Creates the repository, writes the card, uploads. Touches the network only when asked to upload."""

    hub_model_id: str | None = None  # owner/name, once init_hf_repo has been called
    push_in_progress: Any = None

    if TYPE_CHECKING:  # another part of the Trainer has it

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None: ...

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Creates the repository if there is none yet: `args.hub_model_id`, or the output folder's name.

        Args:
            token: default `args.hub_token`.
            private: default `args.hub_private_repo`; a repository that exists stays what it is.

        Raises:
            MisconfigurationException: if the hub refuses the token or the name.
        """
        if self.is_world_process_zero():
            self.hub_model_id = upload.create_repository(self.args, token, private)
            self.push_in_progress = None

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Writes `README.md` into the output folder: what was trained from what, how, where, and with which results.

        transformers' card, with the data, the device and why, the precision and more versions. Everything is optional.
        The tags of a card that is there already are kept, and PEFT's card stays PEFT's. A card that somebody has
        written or changed is kept as `README.before.md`.
        """
        if not self.is_world_process_zero():
            return
        from transformers.modelcard import TrainingSummary

        summarize = partial(TrainingSummary.from_trainer, self)
        model = {"language": language, "license": license, "tags": tags, "model_name": model_name}
        origin = {"finetuned_from": finetuned_from, "tasks": tasks}
        data = {"dataset_tags": dataset_tags, "dataset": dataset, "dataset_args": dataset_args}
        settings: dict[str, Any] = {**model, **origin, **data}
        card.write(summarize, settings, self.args, self.model, self.state, self.train_dataset, self.eval_dataset)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Saves the model, writes its card and uploads the output folder without its checkpoints.

        Args:
            blocking: wait for the upload; False gives a Future of it.
            token, revision, private: default `args.hub_token`, `args.hub_revision`, `args.hub_private_repo`.
            kwargs: for `create_model_card`.

        Returns:
            huggingface_hub's CommitInfo, or a Future of one; None in processes other than the main one.
        """
        self._mt_events.fire("on_push_begin")
        token = self.args.hub_token if token is None else token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**card.settings_for_upload(kwargs, self.args, self.model))
        self._finish_current_push()
        return upload.upload_folder(
            self.args,
            self.hub_model_id,
            self.args.output_dir,
            commit_message,
            blocking=blocking,
            token=token,
            revision=revision,
            ignore_patterns=upload.NOT_UPLOADED,
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Uploads what `args.hub_strategy` asks for at a save, in the background.

        Nothing is uploaded while the upload before goes on, unless `args.hub_always_push`. A hub that fails is a
        warning: the checkpoint is on disk.
        """
        if self.is_world_process_zero():
            push, repository = self.push_in_progress, self.hub_model_id
            self.push_in_progress = upload.push_checkpoint(
                push, repository, checkpoint_folder, self.args, self.state, self.processing_class, self._mt_events.fire
            )

    def _finish_current_push(self) -> None:
        """Waits for the uploads under way; one that failed is a warning."""
        if self.push_in_progress is not None:
            upload.finish(self.push_in_progress, self.hub_model_id, self.args.output_dir)
            self.push_in_progress = None
