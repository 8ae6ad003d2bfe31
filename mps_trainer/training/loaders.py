"""The Trainer's loaders: which dataset, in which order, in batches of which size."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Sampler

from ..data.loader import make_loader, num_examples
from ..data.order import EpochOrder
from ..errors import MisconfigurationException
from .base import TrainerBase


class Loaders(TrainerBase):
    """Override any of these to feed the Trainer from somewhere else."""

    def get_train_dataloader(self) -> DataLoader:
        return self._loader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            sampler=self._get_train_sampler(self.train_dataset),
            drop_last=self.args.dataloader_drop_last,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """The loader of `eval_dataset`, which may be the name of one in the dictionary that the Trainer has."""
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise MisconfigurationException("There is nothing to evaluate on: give the Trainer an eval_dataset.")
        return self._loader(dataset, batch_size=self.args.eval_batch_size)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        return self._loader(test_dataset, batch_size=self.args.eval_batch_size)

    def num_examples(self, dataloader: DataLoader) -> int:
        return num_examples(dataloader, self.args.train_batch_size)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not hasattr(dataset, "__len__"):
            return None
        return EpochOrder(len(dataset), self.data_seed, shuffle=self.args.train_sampling_strategy == "random")

    def _loader(self, dataset: Any, **settings: Any) -> DataLoader:
        return make_loader(
            dataset,
            self.args,
            collator=self.data_collator,
            columns=self.signature_columns,
            model_name=type(self.model).__name__,
            **settings,
        )
