"""Provides `trainer.accelerator` with the methods that subclasses of transformers' Trainer call.

Accelerate itself is not needed. With one process, what gathers or reduces gives back what it got.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ..checkpoints.model_files import Weights
from ..distributed import Processes, accelerate_state, collectives, fsdp, leave
from ..distributed.ddp import no_sync
from ..distributed.full_state import full_state_dict
from ..model.precision import MixedPrecision
from ..training_args import TrainingArguments


class GradientState:
    """The position of the loop within an update.

    Attributes:
        sync_gradients: whether the gradients are complete after this batch, so that the weights are updated next.
        end_of_dataloader: whether the last batch of an evaluation has been taken.
        plugin_kwargs: `gradient_accumulation_kwargs` of `args.accelerator_config`.
    """

    def __init__(self, plugin_kwargs: dict[str, Any]) -> None:
        self.plugin_kwargs = plugin_kwargs
        self.sync_gradients = True
        self.end_of_dataloader = False
        self.remainder = -1

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        self.sync_gradients = sync_gradients


class DistributedType(str, Enum):
    """Lists Accelerate's distributed types; equal to its own members."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_XPU = "MULTI_XPU"
    FSDP = "FSDP"


# those of `args.accelerator_config` that Accelerate keeps in `accelerator.dataloader_config`
_LOADER_SETTINGS = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking")
_OF_SEVERAL = {"cuda": DistributedType.MULTI_GPU, "xpu": DistributedType.MULTI_XPU}


class _State(SimpleNamespace):
    """Holds the values of `accelerator.state`. Other names raise an error that names the alternative."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer.accelerator.state has no {name!r}; it has only what the Trainer uses.")


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Does nothing. It replaces a function that only another process calls."""


class Accelerator:
    """The part of Accelerate's `Accelerator` that Trainers use, with its names.

    Args:
        args: the Trainer's.
        precision: its number format, which wraps the forward of models and scales losses.
        prepare_loader: makes of a DataLoader of the user's what the Trainer iterates over.
    """

    deepspeed_plugin = None
    parallelism_config = None

    def __init__(
        self, args: TrainingArguments, precision: MixedPrecision, prepare_loader: Callable[[DataLoader], DataLoader]
    ) -> None:
        self.device = args.device
        self.mixed_precision = args.mixed_precision
        self.processes = Processes.of(args)
        several = self.use_distributed = self.multi_device = self.processes.is_distributed
        kind = _OF_SEVERAL.get(self.device.type, DistributedType.MULTI_CPU)
        self.is_fsdp2 = bool(args.fsdp) and several
        kind = DistributedType.FSDP if self.is_fsdp2 else kind
        self.distributed_type = kind if several else DistributedType.NO
        self.num_processes = args.world_size
        self.process_index = args.process_index
        self.local_process_index = args.local_process_index
        config: Any = args.accelerator_config
        self.dataloader_config = SimpleNamespace(**{name: getattr(config, name) for name in _LOADER_SETTINGS})
        # the Trainer accumulates by itself
        self.gradient_state = GradientState({**(config.gradient_accumulation_kwargs or {}), "num_steps": 1})
        self.gradient_accumulation_steps = 1
        self.state = _State(
            use_distributed=several,
            deepspeed_plugin=None,
            fsdp_plugin=SimpleNamespace(fsdp_version=2, **args.fsdp_config) if self.is_fsdp2 else None,  # type: ignore[arg-type]
            distributed_type=self.distributed_type,
            num_processes=self.num_processes,
            process_index=self.process_index,
            local_process_index=self.local_process_index,
            is_main_process=self.is_main_process,
            is_local_main_process=self.is_local_main_process,
            device=self.device,
            mixed_precision=self.mixed_precision,
            parallelism_config=None,
        )
        self._args, self._precision, self._prepare_loader = args, precision, prepare_loader
        if args._stands_in:  # libraries that build on transformers' Trainer use Accelerate by itself too
            accelerate_state.shared_state(self.device, self.num_processes, self.mixed_precision)
        self._models: list[nn.Module] = []
        self._optimizers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trainer.accelerator has no {name!r}: it replaces Accelerate's Accelerator and has only what Trainers "
            "use. Use the Trainer's own methods and args, or create an accelerate.Accelerator() yourself."
        )

    # Loaders

    @property
    def split_batches(self) -> bool:
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.dataloader_config.even_batches = value

    @property
    def use_seedable_sampler(self) -> bool:
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        return self.dataloader_config.non_blocking

    # Processes

    @property
    def torch_device_mesh(self) -> None:
        """Returns None, because there is no tensor parallelism."""
        return None

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        return self.process_index == self.num_processes - 1

    def wait_for_everyone(self) -> None:
        """Waits until all processes reach this call."""
        self.processes.wait()

    def main_process_first(self) -> contextlib.AbstractContextManager:
        return self._args.main_process_first(local=False)

    def local_main_process_first(self) -> contextlib.AbstractContextManager:
        return self._args.main_process_first(local=True)

    def on_main_process(self, function: Callable) -> Callable:
        """Returns `function`, or one that does nothing in the other processes."""
        return function if self.is_main_process else _nothing

    def on_local_main_process(self, function: Callable) -> Callable:
        return function if self.is_local_main_process else _nothing

    def on_last_process(self, function: Callable) -> Callable:
        return function if self.is_last_process else _nothing

    def print(self, *args: Any, **kwargs: Any) -> None:
        if self.is_local_main_process:
            print(*args, **kwargs)

    def split_between_processes(
        self, inputs: Any, apply_padding: bool = False
    ) -> contextlib.AbstractContextManager[Any]:
        """Yields this process's part of a list, a tuple, a tensor or a dictionary of them, like Accelerate."""
        if self.num_processes == 1:
            return contextlib.nullcontext(inputs)
        return self._args.distributed_state.split_between_processes(inputs, apply_padding=apply_padding)

    def gather(self, tensor: Any) -> Any:
        """Returns the tensors of all processes, joined in the first dimension; containers of tensors too."""
        return collectives.gather(tensor, self.processes)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Returns the result of `gather`. No example is duplicated here, so none is dropped.

        Objects that are not made of tensors, and those of `use_gather_object`, come in one list of all processes.
        """
        return collectives.gather_for_metrics(input_data, self.processes, use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Returns the "sum", "mean" or "max" over all processes. `scale` is ignored, as in Accelerate outside TPUs."""
        return collectives.reduce(tensor, self.processes, reduction)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Returns tensors padded with `pad_index` in `dim` to the longest of all processes."""
        return collectives.pad(tensor, self.processes, dim, pad_index, pad_first)

    # Objects

    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        """Returns `objects` ready for the Trainer: models on the device, loaders wrapped, others unchanged."""
        ready = tuple(self._prepare_one(item) for item in objects)
        return ready[0] if len(ready) == 1 else ready

    def _prepare_one(self, item: Any) -> Any:
        if isinstance(item, nn.Module):
            return self.prepare_model(item)
        if isinstance(item, torch.optim.Optimizer):
            return self.prepare_optimizer(item)
        return self.prepare_data_loader(item) if isinstance(item, DataLoader) else item

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Returns the model, moved to the device unless `device_placement` is False; in half precision, its forward
        computes under autocast and returns float32."""
        if model not in self._models:
            self._models.append(model)
        self._precision.apply_to(self.unwrap_model(model, keep_torch_compile=False))
        return model if device_placement is False or fsdp.is_sharded(model) else model.to(self.device)

    def prepare_data_loader(self, data_loader: DataLoader, **kwargs: Any) -> DataLoader:
        return self._prepare_loader(data_loader)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        self._optimizers.append(optimizer)
        return optimizer

    def prepare_scheduler(self, scheduler: Any) -> Any:
        return scheduler

    def unwrap_model(
        self,
        model: nn.Module,
        keep_fp32_wrapper: bool = True,
        keep_torch_compile: bool = True,
        recursive: bool = False,
    ) -> nn.Module:
        """Returns the model inside replicas and, unless `keep_torch_compile`, inside torch.compile."""
        compiled = model if hasattr(model, "_orig_mod") else None
        inner: Any = model._orig_mod if compiled is not None else model
        while isinstance(inner, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = inner.module
        return compiled if compiled is not None and keep_torch_compile else inner

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Returns the weights. For a sharded model they are complete in the first process and empty in the others."""
        if fsdp.is_sharded(model):
            return full_state_dict(model, keep=self.is_main_process)
        return (self.unwrap_model(model, keep_torch_compile=False) if unwrap else model).state_dict()

    def free_memory(self, *objects: Any) -> list[None]:
        """Releases the prepared models and optimizers. Returns None for each of `objects`."""
        self._models.clear()
        self._optimizers.clear()
        return [None] * len(objects)

    clear = free_memory

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        if safe_serialization:
            from safetensors.torch import save_file

            save_file(obj, f)
        else:
            torch.save(obj, f)

    def save_model(self, model: nn.Module, save_directory: Any, **kwargs: Any) -> None:
        """Writes the weights of `model` to `model.safetensors` in `save_directory`."""
        from safetensors.torch import save_model

        os.makedirs(save_directory, exist_ok=True)
        inner = self.unwrap_model(model, keep_torch_compile=False)
        if fsdp.is_sharded(inner):
            inner = Weights(self.get_state_dict(inner))
            if not self.is_main_process:
                return
        save_model(inner, os.path.join(save_directory, "model.safetensors"), metadata={"format": "pt"})

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: dict[str, Any] | None = None) -> None:
        """Does nothing, because a Trainer has no trackers of Accelerate. `Trainer.log` logs to its own."""

    def end_training(self) -> None:
        """Ends the process group. Trackers end with their callbacks."""
        leave()

    # The step

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """Returns the gradient scaler of float16, or None."""
        return self._precision.scaler

    @scaler.setter
    def scaler(self, scaler: torch.amp.GradScaler | None) -> None:
        self._precision.scaler = scaler

    @property
    def sync_gradients(self) -> bool:
        return self.gradient_state.sync_gradients

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Returns True if the last update was skipped because of an overflow in float16."""
        return self._precision.step_was_skipped

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Adds the gradients of `loss`, scaled in float16; `kwargs` go to `loss.backward`."""
        self._precision.backward(loss, **kwargs)

    def autocast(self, autocast_handler: Any = None) -> contextlib.AbstractContextManager:
        return self._precision.autocast()

    def accumulate(self, *models: nn.Module) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def no_sync(self, model: nn.Module | None = None) -> contextlib.AbstractContextManager:
        """Disables gradient synchronisation inside."""
        return contextlib.nullcontext() if model is None else no_sync(model, True)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Unscales the float16 gradients, once per update."""
        for one in self._optimizers if optimizer is None else [optimizer]:
            self._precision.unscale(one)

    def clip_grad_norm_(self, parameters: Iterable[nn.Parameter], max_norm: float, norm_type: float = 2) -> Any:
        """Clips the gradients to `max_norm`. Returns their norm before that, on the device."""
        self.unscale_gradients()
        if self.is_fsdp2:
            return fsdp.clip_grad_norm(parameters, max_norm, norm_type)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value_(self, parameters: Iterable[nn.Parameter], clip_value: float) -> None:
        self.unscale_gradients()
        torch.nn.utils.clip_grad_value_(parameters, clip_value)
