"""Writes the files of a checkpoint: at once, from a copy in host memory, in shards, or by the Trainer's methods.

Names and contents are transformers', so that either library resumes the checkpoints of the other.
"""

from __future__ import annotations

import contextlib
import copy
import json
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
from transformers.trainer_callback import TrainerState

from ..arguments.sharding import SHARDED
from ..devices.probes import physical_memory
from ..distributed import Processes
from ..distributed.sharded import class_of, is_sharded
from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from ..utils.compiled import inside_compiled, uncompiled
from ..utils.nested import map_plain_tensors, map_tensors, plain_tensors_in
from . import shards
from .loading import OPTIMIZER, POSITION, SCHEDULER, Stateful, without_progress_bars
from .manifest import WEIGHTS
from .rng import RNG, rng_of_processes
from .trainer_methods import TrainerMethods

logger = logging.getLogger(__name__)

_SHARE = 8  # a copy may take an eighth of the machine's memory, so that training still fits


@dataclass(frozen=True)
class Save:
    """Holds the contents of one checkpoint.

    Attributes:
        state: the Trainer's state, which has the step.
        model: saved with `args` and `processor`.
        stateful: optimizer, schedule and scaler by the names of their files, and the position in training with its
            random states as `POSITION`; empty to save the model only.
        processes: the processes of the run.
        methods: calls the Trainer's methods that write, if other code overrides one of them; else None.
        in_run: False for a checkpoint that is saved by hand.
        in_background: True to write a copy while training goes on.
    """

    state: TrainerState
    model: Any
    stateful: Mapping[str, Stateful]
    args: TrainingArguments
    processor: Any
    processes: Processes
    methods: TrainerMethods | None = None
    in_run: bool = True
    in_background: bool = False


@dataclass(frozen=True)
class Writer:
    """Writes the files of a checkpoint into a folder.

    Attributes:
        write_files: writes them, in one process.
        write_shards: writes the shards of this process before that; None where one process writes everything.
    """

    write_files: Callable[[str], None]
    write_shards: Callable[[str], None] | None = None


def writer_for(save: Save, gathered: Mapping[str, Any]) -> Writer:
    """Returns the writer of a checkpoint.

    Args:
        gathered: what all processes have a part of; see `Checkpoints`.
    """
    if writes_shards(save.model, save.args):
        return shard_writer(save, gathered)
    if save.methods is not None:
        return Writer(save.methods.write_files)
    if save.in_background:
        return background_writer(save, gathered)

    def write(folder: str) -> None:
        write_model_files(save.model, save.processor, save.args, folder, gathered.get(WEIGHTS))
        write_state_dicts(state_dicts(save.stateful, gathered), folder)

    return Writer(write)


def writes_shards(model: nn.Module, args: TrainingArguments) -> bool:
    """Returns True if each process writes its shards of the model and the optimizer."""
    config: Any = args.fsdp_config
    return is_sharded(model) and config.get("state_dict_type") == SHARDED


def shard_writer(save: Save, gathered: Mapping[str, Any]) -> Writer:
    """Returns the writer of a checkpoint in which each process writes its shards of weights and optimizer."""
    optimizer: Any = save.stateful.get(OPTIMIZER)

    def write(folder: str) -> None:
        write_files_without_weights(save.model, save.processor, save.args, folder)
        if optimizer is None:
            return
        rest = shards.tensors_and_rest(optimizer)[1]  # equal in all processes
        torch.save(rest, os.path.join(folder, shards.REST))
        if save.methods is None:
            others = {name: each for name, each in save.stateful.items() if name != OPTIMIZER}
            write_state_dicts(state_dicts(others, gathered), folder)
        else:
            write_state_dicts({SCHEDULER: save.stateful[SCHEDULER].state_dict()}, folder)
            save.methods.write_scaler_and_rng(folder)

    return Writer(write, lambda folder: shards.save_parts(folder, save.model, optimizer, save.processes.group))


def background_writer(save: Save, gathered: Mapping[str, Any]) -> Writer:
    """Copies what `save` holds, and returns the writer of the copies. Training waits for the copy only."""
    model, args, processor = save.model, copy.copy(save.args), save.processor
    with uncompiled(model) as inner:
        weights = inner.state_dict()
    dicts = state_dicts(save.stateful, gathered)
    # later steps change only the tensors of an optimizer's state dict, and these are copied to the host
    dicts = {name: each if name == OPTIMIZER else copy.deepcopy(each) for name, each in dicts.items()}
    weights, dicts = on_host((weights, dicts))

    def write(folder: str) -> None:
        write_model_files(model, processor, args, folder, weights)
        write_state_dicts(dicts, folder)

    return Writer(write)


def can_write_copy(model: nn.Module, optimizer: Any, args: TrainingArguments) -> bool:
    """Returns True if a checkpoint can be written from a copy.

    It cannot if it is gathered from all processes or written by the user's code, nor if a copy of model and optimizer
    would take too much of the machine's memory.
    """
    inner = inside_compiled(model)
    if not args.save_async or args.save_on_each_node or args.fsdp:
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

    Copies the tensors in dictionaries, lists and tuples. Anything else in them is kept as it is.
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
        options = {} if state_dict is None else {"state_dict": state_dict}
        # transformers writes in the first process only, and with save_on_each_node the first one of each machine does
        inner.should_save_on_this_rank = lambda is_main_process: is_main_process
        try:
            with without_progress_bars():
                inner.save_pretrained(folder, **options)
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


def processor_to_save(processing_class: Any, data_collator: Any) -> Any:
    """Returns the tokenizer or processor that goes with the model, or None."""
    return getattr(data_collator, "tokenizer", None) if processing_class is None else processing_class


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


# The other files


def state_dicts(stateful: Mapping[str, Stateful], gathered: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of a checkpoint's files for torch.save, by their names.

    Args:
        gathered: what all processes have a part of.
    """
    own = {name: each for name, each in stateful.items() if name != POSITION}
    found = {name: gathered[name] if name in gathered else each.state_dict() for name, each in own.items()}
    return {**found, **rng_of_processes(gathered.get(RNG, []))}


def write_state_dicts(dicts: Mapping[str, Any], folder: str) -> None:
    """Writes each state dict to the file of its name."""
    for name, content in dicts.items():
        path = os.path.join(folder, name)
        if name.endswith(".json"):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
        else:
            torch.save(content, path)
