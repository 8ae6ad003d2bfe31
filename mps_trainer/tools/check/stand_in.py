"""Copies a Trainer to the CPU, so that steps of the copy do not change the original."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...checkpoints.checkpoints import Checkpoints
from ...data.transfer import BatchTransfer
from ...devices import DeviceRequest, gather_facts, resolve
from ...errors import MisconfigurationException
from ...loop.loss_normalisation import LossNormalisation
from ...model.activation_checkpointing import enable_activation_checkpointing
from ...model.patches.masks import AttentionMasks
from ...model.precision import MixedPrecision
from ...utils.nested import map_plain_tensors, tensors_in

if TYPE_CHECKING:
    from ...trainer import Trainer

# From its second batch on, a step does the same for each.
_MOST_ACCUMULATION = 2
Memo = dict[int, Any]  # the copies by the id of what was copied, as copy.deepcopy has it


def copied(value: Any, memo: Memo) -> Any:
    """Returns a copy of a model or an optimizer on the CPU; raises MisconfigurationException for one that refuses."""
    is_module = isinstance(value, nn.Module)
    for tensor in () if is_module else tensors_in(value.state):
        if is_traceable_wrapper_subclass(tensor):  # torchao's cannot be copied
            memo[id(tensor)] = map_plain_tensors(tensor, torch.clone)
    try:
        value = copy.deepcopy(value, memo)
    except Exception as error:  # a user's module may hold anything
        raise MisconfigurationException(
            f"{type(value).__name__} cannot be copied ({error}), and the trace needs a copy to leave yours "
            "unchanged. Trace a step that you run yourself: `with Tracer() as tracer:`, then tracer.report()."
        ) from error
    if is_module:
        return value.cpu()
    for state in value.state.values():  # each may be any kind of mapping
        state.update({name: each.cpu() for name, each in state.items() if isinstance(each, torch.Tensor)})
    return value


def stand_in_for(trainer: Trainer, copied: Callable[[Any, Memo], Any] = copied) -> Trainer:
    """Returns a copy of `trainer` that shares no state that training changes, without its callbacks.

    It runs on the CPU, in the number formats of the arguments, and accumulates at most two batches.

    Args:
        copied: returns the copy of a module or an optimizer, and notes the copies of its tensors in the memo. Default:
            their deep copy, on the CPU.
    """
    from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

    stand_in = copy.copy(trainer)
    args = stand_in.args = copy.copy(trainer.args)
    vars(args)["decision"] = resolve(DeviceRequest(use_cpu=True), gather_facts())
    vars(args).pop("device", None)  # kept from the first access, like the decision
    # Two batches show all that accumulating does; workers would have to be started for one batch.
    args.gradient_accumulation_steps = min(args.gradient_accumulation_steps, _MOST_ACCUMULATION)
    args.dataloader_num_workers, args.dataloader_prefetch_factor = 0, None
    args.dataloader_persistent_workers = False
    memo: Memo = {}  # one for all copies, so that the optimizer's has the parameters of the model's
    for name, value in vars(trainer).items():
        if isinstance(value, nn.Module):
            setattr(stand_in, name, copied(value, memo))
    stand_in.optimizer, stand_in.lr_scheduler = None, None
    if trainer.optimizer is not None:
        stand_in.optimizer = copied(trainer.optimizer, memo)
    stand_in._mt_precision = MixedPrecision(args.device, args.mixed_precision)
    for name in ("accelerator", "gather_function"):  # made anew when they are asked for
        vars(stand_in).pop(name, None)
    # Nothing is found out: fake tensors cannot be watched, and watching copies the number of items to the device.
    stand_in._mt_normalisation = LossNormalisation(model_divides=True, subclass_divides=True)
    stand_in._mt_transfer = BatchTransfer(args.device)
    stand_in._mt_attention_masks = AttentionMasks(args.device)
    stand_in._mt_attention_masks.applies = True  # mps applies them
    # The one callback that transformers warns without; it does nothing but ask for logs and checkpoints.
    handler = CallbackHandler([DefaultFlowCallback], stand_in.model, stand_in.processing_class, None, None)
    stand_in.callback_handler = handler
    stand_in._mt_checkpoints = Checkpoints(args.output_dir)
    stand_in.state, stand_in.control = trainer.state, copy.deepcopy(trainer.control)  # the run makes a new state
    if args.activation_checkpointing:
        enable_activation_checkpointing(stand_in.model, args)
    return stand_in
