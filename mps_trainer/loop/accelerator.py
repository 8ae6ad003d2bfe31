"""Makes `trainer.accelerator`: Accelerate's `Accelerator`, for subclasses that call it. The loop does not use it."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin, GradientAccumulationPlugin, TorchDynamoPlugin
from accelerate.utils.operations import concatenate, recursively_apply, send_to_device
from torch.utils.data import DataLoader

from ..data.epoch_loader import prepare_loader
from ..distributed import Processes
from ..distributed.accelerate_state import shared_state
from ..model.precision import MixedPrecision
from ..training_args import TrainingArguments

# the settings of `args.accelerator_config` that are about loaders
_OF_LOADERS = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking")


class TrainerAccelerator(Accelerator):
    """Accelerate's `Accelerator` with the device, loaders and gradient scaler of a Trainer."""

    def __init__(self, args: TrainingArguments, precision: MixedPrecision) -> None:
        self._args, self._precision, self._processes = args, precision, Processes.of(args)
        self._may_set_scaler = False
        _reset_other_state(args)
        config: Any = args.accelerator_config
        with mock.patch.dict(os.environ):  # the plugin of FSDP switches it on for other libraries, too
            super().__init__(
                mixed_precision=args.mixed_precision,
                cpu=args.device.type == "cpu",
                dataloader_config=DataLoaderConfiguration(**{name: getattr(config, name) for name in _OF_LOADERS}),
                # the Trainer accumulates by itself
                gradient_accumulation_plugin=GradientAccumulationPlugin(
                    **{**(config.gradient_accumulation_kwargs or {}), "num_steps": 1}
                ),
                fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2) if args.fsdp else None,
                dynamo_plugin=TorchDynamoPlugin(backend="no"),
            )
        self._may_set_scaler = True

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """Returns the Trainer's gradient scaler of float16, or None."""
        return self._precision.scaler

    @scaler.setter
    def scaler(self, scaler: torch.amp.GradScaler | None) -> None:
        if self._may_set_scaler:
            self._precision.scaler = scaler

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Returns True if the last update was skipped because of an overflow in float16."""
        return self._precision.step_was_skipped

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Unscales the float16 gradients, once per update."""
        for one in self._optimizers if optimizer is None else [optimizer]:
            self._precision.unscale(getattr(one, "optimizer", one))

    def prepare_data_loader(self, data_loader: DataLoader, *args: Any, **kwargs: Any) -> Any:
        """Returns the loader with the share of this process. No example is in two shares."""
        return prepare_loader(data_loader, self._args, self._processes)

    def gather(self, tensor: Any) -> Any:
        """Returns the tensors of all processes, concatenated. They may differ in the first dimension.

        They do in the last batch, because no example is repeated to make the processes' shares even.
        """
        if not self._processes.is_distributed:
            return super().gather(tensor)
        on_host = recursively_apply(_on_host, tensor, error_on_other_type=True)
        return send_to_device(concatenate(self._processes.gather(on_host)), self.device)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return torch.atleast_1d(tensor.detach()).cpu()


def _reset_other_state(args: TrainingArguments) -> None:
    """Discards Accelerate's shared state of earlier arguments with another device, precision or sharding."""
    shared_state(args.device, args.world_size)
    state = AcceleratorState._shared_state
    is_other = state.get("_mixed_precision") != args.mixed_precision or bool(args.fsdp) != ("fsdp_plugin" in state)
    if state and is_other:
        AcceleratorState._reset_state()
