"""The Trainer's loaders: which dataset, in which order, in batches of which size."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Sampler

from ..data import dataloaders
from ..data.buckets import BucketBatchSampler, LengthBuckets, buckets_of
from ..data.columns import ColumnRemover, is_table, signature_columns, without_unused_columns
from ..data.loader import close_workers, num_examples
from ..data.samplers import eval_sampler, fitted_buckets, train_sampler
from ..errors import MisconfigurationException
from .base import TrainerBase

logger = logging.getLogger(__name__)


class Loaders(TrainerBase):
    """The methods that make loaders; override any of them to feed the Trainer from somewhere else."""

    _signature_columns: list[str] | None = None  # what may reach the model; None until it is first asked for
    _mt_length_buckets: LengthBuckets | None = None  # of the training data; None until they are first asked for

    def get_train_dataloader(self) -> DataLoader:
        """Returns the loader of `train_dataset`, shuffled anew each epoch unless the arguments say otherwise.

        An override may return anything that gives batches when it is gone through, a list of them as well.

        Raises:
            MisconfigurationException: if there is no `train_dataset`.
        """
        if self.train_dataset is None:
            raise MisconfigurationException("There is nothing to train on: give the Trainer a train_dataset.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Returns the loader of `eval_dataset`, in its own order unless the arguments say otherwise.

        It is the same one again where its workers stay alive.

        Args:
            eval_dataset: a dataset, the name of one in the dictionary that the Trainer has, or None for the Trainer's.

        Raises:
            MisconfigurationException: if there is none.
        """
        key, dataset = dataloaders.eval_dataset_named(eval_dataset, self.eval_dataset)
        make = functools.partial(
            self._get_dataloader,
            dataset=dataset,
            description="Evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key=key,
        )
        if not self.args.dataloader_persistent_workers:
            return make()
        kept = self.__dict__.get("_eval_dataloaders", {}).get(key)
        return dataloaders.kept_or_made(kept, dataset, make, self.state.global_step)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Returns the loader of `test_dataset` for predictions, in the order of an evaluation."""
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader:
        """Returns the loader of `dataset`, as the arguments describe it.

        Args:
            description: what it is for, in messages.
            sampler_fn: gives the order of the dataset, once its unused columns are gone; not called for a stream.
            is_training: workers are given seeds, which transformers does for training only.
            dataloader_key: under which to keep the loader, if its workers stay alive.
        """
        kept, collator = dataset, self.data_collator
        if is_table(dataset):
            kept = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(collator, description=description)
        loader = dataloaders.make_dataloader(
            kept, collator, self.args, batch_size, sampler_fn, is_training, self.processing_class
        )
        split = is_training and buckets_of(loader) is not None
        loader = dataloaders.prepare(loader, self.args, self._mt_processes, whole=split or None, even=is_training)
        if dataloader_key is not None and self.args.dataloader_persistent_workers:
            dataloaders.make_persistent(loader, dataset, dataloader_key, self.args.seed)
            self.__dict__.setdefault("_eval_dataloaders", {})[dataloader_key] = loader
        return loader

    def _mt_close_workers(self, *loaders: Any) -> None:
        """Ends the worker processes of `loaders` and of the evaluations' loaders that persist between passes."""
        for loader in (*loaders, *self.__dict__.pop("_eval_dataloaders", {}).values()):
            close_workers(loader)

    def num_examples(self, dataloader: DataLoader) -> int:
        """Returns the examples in `dataloader`; estimated from its batches if its dataset has no length."""
        return num_examples(dataloader, self.args.per_device_train_batch_size)

    num_tokens = staticmethod(dataloaders.num_tokens)

    # Order

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        """Returns the order of `train_dataset`, by default the Trainer's, as `args.train_sampling_strategy` says.

        A `RandomSampler` that this returns is given a seed for each epoch (see `prepare_loader`). None for a dataset
        without length.
        """
        dataset = self.train_dataset if train_dataset is None else train_dataset
        sampler = train_sampler(dataset, self.args, self._train_batch_size, self.processing_class, self._mt_processes)
        if isinstance(sampler, BucketBatchSampler):
            self._mt_length_buckets = sampler.buckets
        return sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler | None:
        """Returns the dataset's own order; by length, always alike, if training is. None for one without length.

        `evaluation_loop` puts sorted examples back into the dataset's order. With `eval_do_concat_batches=False` it
        cannot, so they are not sorted.
        """
        return eval_sampler(eval_dataset, self.args, self.processing_class, self._mt_training_buckets)

    def _mt_training_buckets(self) -> LengthBuckets | None:
        """Returns the length buckets of `train_dataset`, also before training; None if it cannot be measured."""
        if self._mt_length_buckets is None:
            self._mt_length_buckets = fitted_buckets(
                self.train_dataset, self.args, self.processing_class, self._remove_unused_columns
            )
        return self._mt_length_buckets

    # Columns

    @property
    def _mt_signature_columns(self) -> list[str]:
        """The names of what may reach the model."""
        self._set_signature_columns_if_needed()
        return self._signature_columns or []

    def _set_signature_columns_if_needed(self) -> None:
        """Sets `_signature_columns` to the arguments of the model's forward() and the labels' names, if it is None."""
        if self._signature_columns is None:
            self._signature_columns = signature_columns(self.model, self.label_names)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """Returns `dataset`, a `datasets.Dataset`, without the columns that the model does not take.

        Raises:
            ValueError: if no column is left.
        """
        if not self.args.remove_unused_columns:
            return dataset
        return without_unused_columns(dataset, self._mt_signature_columns, type(self.model).__name__, description)

    def _get_collator_with_removed_columns(self, data_collator: Callable, description: str | None = None) -> Callable:
        """Returns `data_collator`, which gets of each example, a dictionary, only what the model takes."""
        if not self.args.remove_unused_columns:
            return data_collator
        name = type(self.model).__name__
        return ColumnRemover(data_collator, self._mt_signature_columns, logger, name, description)
