"""The Trainer's loaders: which dataset, in which order, in batches of which size."""

from __future__ import annotations

import functools
import inspect
import logging
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler
from transformers.trainer_utils import has_length, seed_worker

from ..arguments.data import parts_of_batch
from ..data.buckets import BucketBatchSampler, LengthBuckets
from ..data.columns import ColumnRemover, is_table, signature_columns, without_unused_columns
from ..data.lengths import LENGTH_STRATEGIES, group_by_length, is_batch_sampler, lengths_of, rebalanced_batches
from ..data.loader import close_workers, num_examples, prepare_loader, worker_seeds_of
from ..data.order import SeededOrder
from ..data.padding import PadToBucket
from ..errors import MisconfigurationException
from .base import TrainerBase

logger = logging.getLogger(__name__)


class Loaders(TrainerBase):
    """Override any of these to feed the Trainer from somewhere else."""

    _signature_columns: list[str] | None = None  # what may reach the model; None until it is first asked for
    _length_buckets: LengthBuckets | None = None  # of the training data; None until they are first asked for

    def get_train_dataloader(self) -> DataLoader:
        """The loader of `train_dataset`, shuffled anew each epoch unless the arguments say otherwise.

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
        """The loader of `eval_dataset`, in its own order unless the arguments say otherwise.

        It is the same one again where its workers stay alive.

        Args:
            eval_dataset: a dataset, the name of one in the dictionary that the Trainer has, or None for the Trainer's.

        Raises:
            MisconfigurationException: if there is none.
        """
        if eval_dataset is None and self.eval_dataset is None:
            raise MisconfigurationException("There is nothing to evaluate on: give the Trainer an eval_dataset.")
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(eval_dataset, str):
            dataset = self.eval_dataset[eval_dataset]
        made_for, loader = self.__dict__.get("_eval_datasets", {}).get(key), None
        if self.args.dataloader_persistent_workers and made_for is dataset:
            loader = self.__dict__.get("_eval_dataloaders", {}).get(key)
        if loader is None:
            loader = self._get_dataloader(
                dataset=dataset,
                description="Evaluation",
                batch_size=self.args.eval_batch_size,
                sampler_fn=self._get_eval_sampler,
                dataloader_key=key,
            )
        if self.args.dataloader_persistent_workers:  # whatever evaluations came before
            loader.pass_number, loader.iteration = self.state.global_step, 0
        return loader

    def _close_workers(self, *loaders: Any) -> None:
        """Ends the worker processes of `loaders` and of the evaluations' loaders that persist between passes."""
        for loader in (*loaders, *self.__dict__.pop("_eval_dataloaders", {}).values()):
            close_workers(loader)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """The loader of `test_dataset` for predictions, in the order of an evaluation."""
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def num_examples(self, dataloader: DataLoader) -> int:
        """Examples that `dataloader` goes through; estimated from its batches if its dataset has no length."""
        return num_examples(dataloader, self.args.per_device_train_batch_size)

    @staticmethod
    def num_tokens(train_dl: DataLoader, max_steps: int | None = None) -> int:
        """Tokens in all batches' `input_ids`; with `max_steps`, those of the first batch times that many."""
        tokens = 0
        for batch in train_dl:
            if "input_ids" not in batch:
                logger.warning("Tokens cannot be counted: the batches have no input_ids.")
                return tokens
            if max_steps is not None:
                return batch["input_ids"].numel() * max_steps
            tokens += batch["input_ids"].numel()
        return tokens

    # Order

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        """The order of `train_dataset`, by default the Trainer's, as `args.train_sampling_strategy` says.

        A `RandomSampler` that this returns is given a seed for each epoch (see `prepare_loader`). None for a dataset
        without length.
        """
        args = self.args
        dataset = self.train_dataset if train_dataset is None else train_dataset
        strategy = args.train_sampling_strategy
        if dataset is None or not has_length(dataset):
            self._warn_of_order(dataset)
            return None
        if len(dataset) == 0:
            return SequentialSampler(dataset)  # the run says what is wrong; a RandomSampler would in its own terms
        column, processing_class = args.length_column_name, self.processing_class
        several = self.processes.are_several
        seed = torch.initial_seed() if args.data_seed is None else args.data_seed
        if strategy == "group_by_length":
            update = args.train_batch_size * args.gradient_accumulation_steps * self.processes.size
            order = group_by_length(dataset, update, column, processing_class)
            return SeededOrder(order, seed) if several else order
        if strategy == "batch_rebalance":
            if several:
                raise MisconfigurationException(
                    "train_sampling_strategy='batch_rebalance' works in one process, and this is one of "
                    f"{self.processes.size}. Take 'bucket_by_length' or 'group_by_length'."
                )
            return rebalanced_batches(
                dataset,
                args.train_batch_size,
                args.gradient_accumulation_steps,
                column,
                processing_class,
                args.dataloader_drop_last,
            )
        if strategy == "bucket_by_length":
            together = self._train_batch_size * self.processes.size
            parts = parts_of_batch(together, args.gradient_accumulation_steps)
            sampler = BucketBatchSampler(
                lengths_of(dataset, column, processing_class),
                together // parts,
                num_buckets=args.num_length_buckets,
                seed=seed,
                drop_last=args.dataloader_drop_last,
            )
            sampler.parts = parts
            self._length_buckets = sampler.buckets
            return sampler
        return SequentialSampler(dataset) if strategy == "sequential" else RandomSampler(dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler | None:
        """The dataset's own order; grouped or sorted by length, always alike, if training is. None without a length.

        What was sorted is put back into the dataset's order by `evaluation_loop`, which cannot do so with batches that
        stay apart.
        """
        if eval_dataset is None or not has_length(eval_dataset):
            return None
        strategy, apart = self.args.train_sampling_strategy, not self.args.eval_do_concat_batches
        if strategy == "bucket_by_length" and len(eval_dataset) > 0 and not apart:
            return self._sorted_batches(eval_dataset)
        if strategy != "group_by_length":
            return SequentialSampler(eval_dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return group_by_length(
            eval_dataset,
            self.args.eval_batch_size,
            self.args.length_column_name,
            self.processing_class,
            generator=torch.Generator().manual_seed(seed),
        )

    def _sorted_batches(self, dataset: Any) -> BucketBatchSampler:
        """Batches in the order of length, padded to the lengths of training, or to their own if nothing is trained."""
        args = self.args
        return BucketBatchSampler(
            lengths_of(dataset, args.length_column_name, self.processing_class),
            args.eval_batch_size,
            buckets=self._training_buckets(),
            num_buckets=args.num_length_buckets,
            shuffle=False,
            drop_last=args.dataloader_drop_last,
        )

    def _training_buckets(self) -> LengthBuckets | None:
        """The length buckets of `train_dataset`, before training begins as well; None if it cannot be measured."""
        args, dataset = self.args, self.train_dataset
        measurable = has_length(dataset) and len(dataset) > 0 and not isinstance(dataset, IterableDataset)
        if self._length_buckets is None and measurable:
            if is_table(dataset):
                dataset = self._remove_unused_columns(dataset, description="Training")
            try:
                lengths = lengths_of(dataset, args.length_column_name, self.processing_class)
            except MisconfigurationException:  # what training would say; an evaluation can do without
                return None
            self._length_buckets = LengthBuckets.fitted(lengths, args.num_length_buckets)
        return self._length_buckets

    def _warn_of_order(self, dataset: Any) -> None:
        if dataset is not None and self.args.train_sampling_strategy in LENGTH_STRATEGIES:
            logger.warning(
                "train_sampling_strategy='%s' has no effect: the training dataset is a stream or does not know its "
                "length, so its examples come in its own order.",
                self.args.train_sampling_strategy,
            )

    # Columns

    @property
    def signature_columns(self) -> list[str]:
        """Names of what may reach the model."""
        self._set_signature_columns_if_needed()
        return self._signature_columns or []

    def _set_signature_columns_if_needed(self) -> None:
        """Sets `_signature_columns` to the arguments of the model's forward() and the labels' names, if it is None."""
        if self._signature_columns is None:
            self._signature_columns = signature_columns(self.model, self.label_names)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """`dataset`, a `datasets.Dataset`, without the columns that the model does not take.

        Raises:
            ValueError: if no column is left.
        """
        if not self.args.remove_unused_columns:
            return dataset
        return without_unused_columns(dataset, self.signature_columns, type(self.model).__name__, description)

    def _get_collator_with_removed_columns(self, data_collator: Callable, description: str | None = None) -> Callable:
        """`data_collator` for a dataset of dictionaries: what the model does not take is left out of them first."""
        if not self.args.remove_unused_columns:
            return data_collator
        return ColumnRemover(
            data_collator,
            self.signature_columns,
            logger=logger,
            model_name=type(self.model).__name__,
            description=description,
        )

    def _padding_to(self, buckets: LengthBuckets, collator: Callable) -> Callable:
        """`collator`, whose batches have the lengths of `buckets`."""
        if isinstance(collator, ColumnRemover):  # which hands the examples on to the one that pads
            collator.data_collator = self._padding_to(buckets, collator.data_collator)
            return collator
        return collator if isinstance(collator, PadToBucket) else PadToBucket(collator, buckets, self.processing_class)

    # Making

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader:
        """The loader of `dataset`, as the arguments describe it.

        Args:
            description: what it is for, in messages.
            sampler_fn: gives the order of the dataset, once its unused columns are gone; not called for a stream.
            is_training: workers are given seeds, which transformers does for training only.
            dataloader_key: under which to keep the loader, if its workers stay alive.
        """
        given, collator = dataset, self.data_collator
        if is_table(dataset):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(self.data_collator, description=description)
        settings = {"batch_size": batch_size, "collate_fn": collator, **self._loading()}
        if isinstance(dataset, IterableDataset):
            if is_training:
                self._warn_of_order(dataset)
        else:
            sampler = _ask(sampler_fn, dataset)
            if is_batch_sampler(sampler):
                del settings["batch_size"]
                settings["batch_sampler"] = sampler
            else:
                settings.update(sampler=sampler, drop_last=self.args.dataloader_drop_last)
            if isinstance(sampler, BucketBatchSampler):
                settings["collate_fn"] = self._padding_to(sampler.buckets, collator)
            if is_training:
                settings["worker_init_fn"] = functools.partial(
                    seed_worker, num_workers=self.args.dataloader_num_workers, rank=self.args.process_index
                )
        split = is_training and isinstance(settings.get("batch_sampler"), BucketBatchSampler)
        loader = self.prepare_loader(DataLoader(dataset, **settings), whole=split or None, even=is_training)
        if dataloader_key is not None and self.args.dataloader_persistent_workers:
            # not from torch's global generator: a resumed run would have to know which evaluations drew a seed there
            loader.generator = torch.Generator().manual_seed(self.args.seed)
            if (seeds := worker_seeds_of(loader)) is not None:
                seeds.purpose = 1 + zlib.crc32(dataloader_key.encode())
            self.__dict__.setdefault("_eval_dataloaders", {})[dataloader_key] = loader
            self.__dict__.setdefault("_eval_datasets", {})[dataloader_key] = given
        return loader

    def prepare_loader(self, loader: Any, whole: bool | None = None, even: bool = True) -> Any:
        """`loader` ready for epochs: a `RandomSampler` in it is seeded for each, unless `accelerator_config` forbids.

        With several processes it gives this one its share. Then `split_batches` means a batch of `loader` to be one of
        all processes; `dispatch_batches` and `even_batches` change nothing: each process loads its own batches, and no
        example is repeated to make them even.

        Args:
            whole, even: see `ShareOfBatches`; `whole` is by default what `split_batches` says.
        """
        config: Any = self.args.accelerator_config
        seedable = config.get("use_seedable_sampler", True) if isinstance(config, dict) else None
        if seedable is None:
            seedable = getattr(config, "use_seedable_sampler", True)
        if whole is None:
            whole = bool(config.get("split_batches") if isinstance(config, dict) else config.split_batches)
        return prepare_loader(
            loader,
            seedable=seedable,
            data_seed=self.args.data_seed,
            seed=self.args.seed,
            processes=self.processes,
            whole=whole,
            even=even,
        )

    def _loading(self) -> dict[str, Any]:
        """How batches are loaded: by how many processes, started how, and into which memory."""
        args = self.args
        workers = args.dataloader_num_workers
        return {
            "num_workers": workers,
            "pin_memory": args.dataloader_pin_memory and args.device.type == "cuda",
            "persistent_workers": args.dataloader_persistent_workers,
            # None is Python's own, which is spawn on a Mac: a fork of a process that has used Metal can abort there.
            "multiprocessing_context": args.dataloader_multiprocessing_context if workers else None,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "in_order": args.dataloader_in_order,
        }


def _ask(sampler_fn: Callable | None, dataset: Any) -> Sampler | None:
    """The sampler for `dataset`. Subclasses written for transformers 4 have a function that takes no dataset."""
    if sampler_fn is None:
        return None
    return sampler_fn(dataset) if inspect.signature(sampler_fn).parameters else sampler_fn()
