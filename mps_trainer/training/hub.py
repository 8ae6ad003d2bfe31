"""The model on the hub: its repository, its card and its uploads. huggingface_hub and transformers do the work."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.folders import LOCK
from ..distributed.sharded import class_of, is_sharded
from ..errors import MisconfigurationException
from ..refusal import sentence
from ..reports import record
from . import card
from .base import TrainerBase

logger = logging.getLogger(__name__)

# A report names the machine and its folders; who wants it there uploads it.
NOT_UPLOADED = ["_*", "checkpoint-*", LOCK, record.NAME, record.PAGE, "README.before*.md"]
_WEIGHTS = ["config.json", "generation_config.json", "pytorch_model.bin", "model.safetensors"]
_ADAPTERS = ["adapter_config.json", "adapter_model.bin", "adapter_model.safetensors"]
_INDEXES = ["pytorch_model.bin.index.json", "model.safetensors.index.json"]


class Hub(TrainerBase):
    """Creates the repository, writes the card, uploads. Touches the network only when asked to upload."""

    hub_model_id: str | None = None  # owner/name, once init_hf_repo has been called
    push_in_progress: Any = None

    if TYPE_CHECKING:  # another part of the Trainer has it

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None: ...

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Makes the repository, if there is none yet: `args.hub_model_id`, or the output folder's name.

        Args:
            token: default `args.hub_token`.
            private: default `args.hub_private_repo`; a repository that exists stays what it is.

        Raises:
            MisconfigurationException: if the hub refuses the token or the name.
        """
        if not self.is_world_process_zero():
            return
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        token = self.args.hub_token if token is None else token
        private = self.args.hub_private_repo if private is None else private
        try:
            made = HfApi().create_repo(name, token=token, private=private, exist_ok=True)
        except HfHubHTTPError as error:
            if getattr(error.response, "status_code", None) not in (401, 403):
                raise
            raise MisconfigurationException(
                f"The hub does not let this token make or write to {name}: {str(error).strip().splitlines()[0]} "
                "Log in with `hf auth login` or give hub_token a token that may write, or leave out push_to_hub."
            ) from error
        except (OSError, ValueError) as error:  # no connection, no token, no such name
            raise MisconfigurationException(
                f"push_to_hub=True with hub_model_id={name!r} cannot be done: {sentence(error)} Give hub_model_id a "
                "name such as ada/boats and see that the hub can be reached, or leave out push_to_hub."
            ) from error
        self.hub_model_id = made.repo_id
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
        from huggingface_hub import ModelCard
        from transformers.modelcard import TrainingSummary

        path = os.path.join(self.args.output_dir, "README.md")
        is_peft = False
        card.keep_if_changed(path)
        if os.path.exists(path):
            known = ModelCard.load(path).data
            is_peft = known.get("library_name") == "peft"
            if tags is not None and known.tags is not None:
                given = [tags] if isinstance(tags, str) else list(tags)
                tags = [*given, *(tag for tag in known.tags if tag not in given)]
        looked_at = self.train_dataset if self.eval_dataset is None else self.eval_dataset
        if dataset_tags is None and card.is_nameless(looked_at):
            dataset_tags, dataset_args = [], []  # it would write that the dataset is called None
        has_config = getattr(self.model, "config", None) is not None
        if tasks is None and is_sharded(self.model):
            tasks = card.task_of(class_of(self.model))
        summary = TrainingSummary.from_trainer(
            self,
            language=language,
            license=license,
            tags=tags,
            model_name=model_name,
            # it would look for the name in the model's configuration
            finetuned_from="" if finetuned_from is None and not has_config else finetuned_from,
            tasks=tasks,
            dataset_tags=dataset_tags,
            dataset=dataset,
            dataset_args=dataset_args,
        )
        summary.finetuned_from = summary.finetuned_from or None
        more = card.more_arguments(self.args, self.state.epoch, self.model)
        summary.hyperparameters = {**(summary.hyperparameters or {}), **more}
        os.makedirs(self.args.output_dir, exist_ok=True)
        place = Path(path)
        source = dataset if isinstance(dataset, str) else ", ".join(dataset or [])
        data = card.data_table(self.train_dataset, self.eval_dataset, source)
        text = card.completed(summary.to_model_card(), data, self.args, self.state.log_history)
        place.write_text(text, encoding="utf-8")
        if is_peft:
            model: Any = self.model
            model.create_or_update_model_card(self.args.output_dir)
            card.forget_local_base(path)
        place.write_text(card.sealed(place.read_text(encoding="utf-8")), encoding="utf-8")

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
        from huggingface_hub import HfApi

        self.fire("on_push_begin")
        model_name = kwargs.pop("model_name", None)
        if model_name is None and self.args.should_save:
            model_name = (self.args.hub_model_id or Path(self.args.output_dir).name).split("/")[-1]
        token = self.args.hub_token if token is None else token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        model_tags = getattr(self.model, "model_tags", None)
        if model_tags is not None:
            tags = kwargs.get("tags") or []
            tags = [tags] if isinstance(tags, str) else list(tags)
            kwargs["tags"] = [*tags, *(tag for tag in model_tags if tag not in tags)]
        self.create_model_card(model_name=model_name, **kwargs)
        self._finish_current_push()
        api: Any = HfApi()
        return api.upload_folder(
            repo_id=self._repository(),
            folder_path=self.args.output_dir,
            commit_message=commit_message,
            token=token,
            run_as_future=not blocking,
            ignore_patterns=NOT_UPLOADED,
            revision=self.args.hub_revision if revision is None else revision,
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Uploads what `args.hub_strategy` asks for at a save, in the background.

        Nothing is uploaded while the upload before goes on, unless `args.hub_always_push`. A hub that fails is a
        warning: the checkpoint is on disk.
        """
        if not self.is_world_process_zero() or self.args.hub_strategy == "end":
            return
        pending = self.push_in_progress if self.push_in_progress and not self.push_in_progress.is_done() else None
        if pending is not None and not self.args.hub_always_push:
            return
        self._warn_of_failed_uploads(wait=False)
        self.fire("on_push_begin")
        self._copy_model_files(checkpoint_folder)
        unit = f"step {self.state.global_step}"
        if self.args.save_strategy != "steps":
            unit = f"epoch {int(self.state.epoch or 0)}"
        message = f"Training in progress, {unit}"
        jobs = [self._upload(self.args.output_dir, message, ignore_patterns=NOT_UPLOADED)]
        if self.args.hub_strategy in ("checkpoint", "all_checkpoints"):
            last = self.args.hub_strategy == "checkpoint"
            name = "last-checkpoint" if last else Path(checkpoint_folder).name
            jobs.append(self._upload(checkpoint_folder, f"{message}, checkpoint", path_in_repo=name))
        if pending is not None:
            pending.jobs.extend(jobs)
            return
        from transformers.utils.hub import PushInProgress

        self.push_in_progress = PushInProgress(jobs)

    def _finish_current_push(self) -> None:
        """Waits for the uploads under way; one that failed is a warning."""
        if self.push_in_progress is None:
            return
        if not self.push_in_progress.is_done():
            logger.info("Waiting for the upload of the last checkpoint, which may take some minutes.")
        self._warn_of_failed_uploads(wait=True)
        self.push_in_progress = None

    def _warn_of_failed_uploads(self, wait: bool) -> None:
        """One warning for each upload that failed, of those that are done or, with `wait`, of all."""
        for job in self.push_in_progress.jobs if self.push_in_progress else []:
            error = job.exception() if wait or job.done() else None
            if error is not None:
                logger.warning(
                    "An upload to %s failed: %s. The files are in %s; trainer.push_to_hub() uploads them again.",
                    self.hub_model_id,
                    error,
                    self.args.output_dir,
                )

    def _repository(self) -> str:
        assert self.hub_model_id is not None
        return self.hub_model_id

    def _upload(self, folder: str, message: str, **settings: Any) -> Any:
        from huggingface_hub import HfApi

        return HfApi().upload_folder(
            repo_id=self._repository(),
            folder_path=folder,
            commit_message=message,
            token=self.args.hub_token,
            run_as_future=True,
            revision=self.args.hub_revision,
            **settings,
        )

    def _copy_model_files(self, checkpoint_folder: str) -> None:
        """The checkpoint's model into the output folder, which is what is uploaded."""
        names = [*_WEIGHTS, *_ADAPTERS, "training_args.bin"]
        for index in _INDEXES:
            path = os.path.join(checkpoint_folder, index)
            if os.path.isfile(path):
                with open(path, encoding="utf-8") as file:
                    names += [index, *set(json.load(file)["weight_map"].values())]
        for name in names:
            source = os.path.join(checkpoint_folder, name)
            if os.path.isfile(source):
                shutil.copy(source, os.path.join(self.args.output_dir, name))
        if hasattr(self.processing_class, "save_pretrained"):
            self.processing_class.save_pretrained(self.args.output_dir)
