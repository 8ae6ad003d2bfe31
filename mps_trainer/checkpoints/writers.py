"""Writes the files of model and optimizer: by the Trainer's methods, from a copy in host memory, or in shards.

Names and contents are transformers', so that either library resumes the checkpoints of the other.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_model
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

from ..arguments.sharding import SHARDED
from ..devices.probes import physical_memory
from ..distributed.sharded import class_of, is_sharded
from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from ..utils.compiled import inside_compiled, uncompiled
from ..utils.nested import map_plain_tensors, map_tensors, plain_tensors_in
from . import shards
from .loading import OPTIMIZER, SCHEDULER, without_progress_bars
from .manifest import WEIGHTS
from .surface import SavingTrainer

logger = logging.getLogger(__name__)

_SHARE = 8  # a copy may take this part of the machine's memory; training in what is left of it has to go on


@dataclass(frozen=True)
class Writer:
    """Writes the files of a checkpoint into a folder.

    Attributes:
        write_files: writes them, in one process.
        write_shards: writes the shards of this process before that; None where one process writes everything.
        in_background: True if `write_files` reads copies only, so that training may continue meanwhile.
    """

    write_files: Callable[[str], None]
    write_shards: Callable[[str], None] | None = None
    in_background: bool = False


def writer_for(trainer: SavingTrainer, states: Mapping[str, Any]) -> Writer:
    """Returns the writer of the Trainer's next checkpoint: in shards, in the background, or by its methods.

    Args:
        states: optimizer, schedule, scaler and generators by the names of their files; empty to write the model only.
    """
    if writes_shards(trainer.model, trainer.args):
        return shard_writer(trainer, states)
    if _may_write_in_background(trainer):
        return background_writer(trainer, states)

    def write_by_methods(folder: str) -> None:
        trainer.save_model(folder, _internal_call=True)
        os.makedirs(folder, exist_ok=True)  # an override may remove a folder that it does not know
        if not trainer.args.save_only_model:
            trainer._save_optimizer_and_scheduler(folder)
            trainer._save_scaler(folder)
            trainer._save_rng_state(folder)

    return Writer(write_by_methods)


def writes_shards(model: nn.Module, args: TrainingArguments) -> bool:
    """Returns True if each process writes its shards of the model and the optimizer."""
    config: Any = args.fsdp_config
    return is_sharded(model) and config.get("state_dict_type") == SHARDED


def shard_writer(trainer: SavingTrainer, states: Mapping[str, Any]) -> Writer:
    """Returns the writer of a checkpoint in which each process writes its shards of weights and optimizer."""
    model, optimizer = trainer.model, states.get(OPTIMIZER)

    def write(folder: str) -> None:
        write_files_without_weights(model, processor_to_save(trainer), trainer.args, folder)
        if optimizer is not None:
            rest = shards.tensors_and_rest(optimizer)[1]  # equal in all processes
            torch.save(rest, os.path.join(folder, shards.REST))
            write_states({SCHEDULER: states[SCHEDULER]}, folder)
            trainer._save_scaler(folder)
            trainer._save_rng_state(folder)

    group = trainer._mt_processes.group
    return Writer(write, lambda folder: shards.save_parts(folder, model, optimizer, group))


def background_writer(trainer: SavingTrainer, states: Mapping[str, Any]) -> Writer:
    """Copies weights and `states`, and returns the writer of the copies. Training waits for the copy only."""
    model, args, processor = trainer.model, copy.copy(trainer.args), processor_to_save(trainer)
    with uncompiled(model) as inner:
        weights = inner.state_dict()
    weights, copied = on_host((weights, {name: _state_of(owner) for name, owner in states.items()}))

    def write(folder: str) -> None:
        write_model_files(model, processor, args, folder, weights)
        write_states(copied, folder)

    return Writer(write, in_background=True)


def _state_of(owner: Any) -> Any:
    """Returns the state of `owner`. Later steps change only its tensors."""
    if isinstance(owner, dict):
        return owner
    return owner.state_dict() if isinstance(owner, torch.optim.Optimizer) else copy.deepcopy(owner.state_dict())


def _may_write_in_background(trainer: SavingTrainer) -> bool:
    """Returns True if a checkpoint can be written in the background from a copy.

    It cannot where a checkpoint is saved by hand or gathered from all processes, where the user's code takes part in
    writing it or expects it to be there at on_save, nor where a second copy of model and optimizer would crowd the
    machine's memory.
    """
    args, inner, optimizer = trainer.args, inside_compiled(trainer.model), trainer.optimizer
    if trainer._mt_run is None or not args.save_async or args.save_on_each_node or args.fsdp:
        return False
    compat, events = trainer._mt_compat, trainer._mt_events
    if compat.writes_checkpoints or events.has_listener("on_save"):
        return False
    # an upload begins when the checkpoint is complete, which may be a step later
    if args.push_to_hub and (compat.uploads_checkpoints or events.has_listener("on_push_begin")):
        return False
    special = hasattr(inner, "peft_config") or getattr(inner, "quantization_method", None) is not None
    if special or not isinstance(optimizer, torch.optim.Optimizer):
        return False
    if isinstance(inner, PreTrainedModel) and type(inner).save_pretrained is not PreTrainedModel.save_pretrained:
        return False
    return nbytes([inner.state_dict(), optimizer.state_dict()]) <= physical_memory() // _SHARE


def check_extra_states(model: nn.Module) -> None:
    """Raises MisconfigurationException if a module has a state that a file of tensors cannot hold."""
    if hasattr(model, "peft_config"):  # only adapters are saved
        return
    for name, module in model.named_modules():
        if type(module).get_extra_state is nn.Module.get_extra_state:
            continue
        if not isinstance(state := module.get_extra_state(), torch.Tensor):
            place = f" ({name!r})" if name else ""
            raise MisconfigurationException(
                f"get_extra_state() of {type(module).__name__}{place} returns a {type(state).__name__}, and weights "
                "are saved as safetensors, which hold tensors alone. Return a tensor, such as "
                "torch.frombuffer(bytearray(pickle.dumps(state)), dtype=torch.uint8)."
            )


# Copies in the host's memory


def on_host(value: Any) -> Any:
    """Returns `value` with a copy of each tensor on the host; tensors that share memory do so in the copy, too.

    Dictionaries, lists and tuples are gone through; anything else that they hold is taken as it is.
    """
    copies: dict[tuple, torch.UntypedStorage] = {}

    def copy_of(tensor: torch.Tensor) -> torch.Tensor:
        place = _place(tensor)
        if place not in copies:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            copies[place] = whole.to("cpu", copy=True).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(copies[place], tensor.storage_offset(), tensor.size(), tensor.stride())

    return map_tensors(value, lambda tensor: map_plain_tensors(tensor, copy_of))


def nbytes(value: Any) -> int:
    """Returns the bytes that `on_host(value)` would take."""
    storages = {_place(tensor): tensor.untyped_storage() for tensor in plain_tensors_in(value)}
    return sum(storage.nbytes() for storage in storages.values())


def _place(tensor: torch.Tensor) -> tuple:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


# The files


def write_model_files(
    model: nn.Module,
    processing_class: Any,
    args: TrainingArguments,
    folder: str,
    state_dict: dict[str, Any] | None = None,
) -> None:
    """Writes weights, configuration, tokenizer or processor, and arguments. Weights are safetensors.

    Args:
        state_dict: weights to write instead of the model's own.
    """
    os.makedirs(folder, exist_ok=True)
    if state_dict is None:
        with uncompiled(model) as inner:
            check_extra_states(inner)
            _write_weights_and_config(inner, folder, None)
    else:  # may run in a thread while another one trains the model
        _write_weights_and_config(inside_compiled(model), folder, state_dict)
    _write_processor_and_args(processing_class, args, folder)


def _write_weights_and_config(inner: Any, folder: str, state_dict: dict[str, Any] | None) -> None:
    if isinstance(inner, PreTrainedModel) or hasattr(inner, "peft_config"):
        given = {} if state_dict is None else {"state_dict": state_dict}
        # transformers writes in the first process only, and with save_on_each_node the first one of each machine does
        inner.should_save_on_this_rank = lambda is_main_process: is_main_process
        try:
            with without_progress_bars():
                inner.save_pretrained(folder, **given)
        finally:
            vars(inner).pop("should_save_on_this_rank", None)  # a callback may save beside the thread that does
    else:
        weights = _without_views(inner.state_dict() if state_dict is None else state_dict)
        named: Any = SimpleNamespace(state_dict=lambda: weights)
        save_model(named, os.path.join(folder, WEIGHTS), metadata={"format": "pt"})


def _without_views(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `state_dict` with a contiguous copy of each tensor that is a slice of a larger one, or transposed.

    safetensors saves only whole storages, and each storage once, so tied weights stay tied. Slices that overlap are
    each saved in full, and loading restores them, because the shared part is equal in both.
    """
    copies: dict[tuple, torch.Tensor] = {}

    def whole(value: Any) -> Any:
        if not torch.is_tensor(value) or value.layout != torch.strided or is_traceable_wrapper_subclass(value):
            return value
        if value.is_contiguous() and value.nbytes == value.untyped_storage().nbytes():
            return value
        view = (*_place(value), value.storage_offset(), value.size(), value.stride(), value.dtype)
        if view not in copies:
            copies[view] = value.detach().clone(memory_format=torch.contiguous_format)
        return copies[view]

    return {name: whole(value) for name, value in state_dict.items()}


def write_files_without_weights(model: Any, processing_class: Any, args: TrainingArguments, folder: str) -> None:
    """Writes the files of `write_model_files` except the weights, which each process writes in part."""
    os.makedirs(folder, exist_ok=True)
    if isinstance(model, PreTrainedModel):  # its own save_pretrained does so, too
        model.config.architectures = [class_of(model).__name__]
        model.config.dtype = str(model.dtype).removeprefix("torch.")
    for name in ("config", "generation_config"):
        part: Any = getattr(model, name, None)
        if hasattr(part, "save_pretrained"):
            part.save_pretrained(folder)
    _write_processor_and_args(processing_class, args, folder)


def processor_to_save(trainer: Any) -> Any:
    """Returns the tokenizer or processor that goes with the model, or None."""
    given = trainer.processing_class
    return getattr(trainer.data_collator, "tokenizer", None) if given is None else given


def _write_processor_and_args(processing_class: Any, args: TrainingArguments, folder: str) -> None:
    """Writes the arguments for people to read: no code here reads the file, because unpickling could run code."""
    if processing_class is not None and hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)
    path, shown = os.path.join(folder, "training_args.bin"), copy.copy(args)
    shown.hub_token = None  # the file is uploaded
    try:
        torch.save(shown, path)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # a class inside a function, for one
        logger.warning("%s was not written: the arguments cannot be pickled (%s).", path, error)
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def write_states(states: Mapping[str, Any], folder: str) -> None:
    """Writes each state, or the state_dict() of each object, to the file of its name."""
    for name, owner in states.items():
        torch.save(owner if isinstance(owner, dict) else owner.state_dict(), os.path.join(folder, name))
