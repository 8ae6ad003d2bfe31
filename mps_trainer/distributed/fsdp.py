"""Shards parameters, gradients and optimizer state over the processes with PyTorch's FSDP2.

Each block of the model is gathered while it computes, and otherwise each process has a part of each parameter. torch
does the work; this module chooses the blocks.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..arguments.sharding import BY_SIZE, WHOLE
from ..errors import MisconfigurationException
from ..utils.caches import CACHES
from ..utils.text import first_line
from . import Processes
from .sharded import class_of, is_sharded

if TYPE_CHECKING:
    from ..training_args import TrainingArguments

logger = logging.getLogger(__name__)

# FSDP does not gather these, because their parameters are used without a call of their forward
_NOT_CALLED = (nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)


def sharded(
    model: nn.Module, args: TrainingArguments, processes: Processes, recompute_settings: dict[str, Any]
) -> nn.Module:
    """Shards `model` over the processes in place, unless it is sharded, and returns it.

    All processes begin with the first one's weights.

    Args:
        recompute_settings: settings of `torch.utils.checkpoint.checkpoint`, for `activation_checkpointing`.

    Raises:
        MisconfigurationException: if it lacks the blocks that the arguments name, or torch cannot shard it.
    """
    if is_sharded(model):
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard, register_fsdp_forward_method

    config: Any = args.fsdp_config
    blocks = find_blocks(model, config)
    policy = config.get("auto_wrap_policy")
    wants_blocks = policy != WHOLE and (policy != BY_SIZE or config.get("min_num_params"))
    if wants_blocks and not blocks and processes.is_first:
        logger.warning(
            "fsdp: %s has no block, so each step gathers the whole model at once. Name the class of its blocks with "
            "transformer_layer_cls_to_wrap in fsdp_config, or give a smaller min_num_params.",
            type(model).__name__,
        )
    for unit in (*blocks, model):
        _require_one_format(unit)
    _broadcast_weights(model, args.device)
    if config.get("activation_checkpointing"):
        _recompute(blocks, recompute_settings)
    mesh = init_device_mesh(args.device.type, (processes.size,))
    offloads = config.get("cpu_offload") and args.device.type != "cpu"
    settings: dict[str, Any] = {"mesh": mesh, **({"offload_policy": CPUOffloadPolicy()} if offloads else {})}
    after = config.get("reshard_after_forward", True)
    try:
        for block in blocks:
            fully_shard(block, reshard_after_forward=after, mp_policy=_precision(args, True), **settings)
        # the layers outside of blocks stay gathered from their first use in a step to the last
        fully_shard(model, mp_policy=_precision(args, False), **settings)
    except (ValueError, NotImplementedError, AssertionError, RuntimeError) as error:
        raise MisconfigurationException(
            f"fsdp=True, but PyTorch cannot shard {class_of(model).__name__}: {first_line(error)} Leave fsdp "
            "out, or name other blocks with transformer_layer_cls_to_wrap in fsdp_config."
        ) from error
    if hasattr(model, "generate"):
        register_fsdp_forward_method(model, "generate")
    logger.info("Sharded over %d processes, in %d blocks and the remaining layers.", processes.size, len(blocks))
    return model


def _precision(args: TrainingArguments, is_block: bool) -> Any:
    """Returns the number format of parameters in use. Inputs keep theirs, because labels may be among them."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    config: Any = args.fsdp_config
    given = dict(config.get("mixed_precision_policy") or {})
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(args.mixed_precision)
    if not given and dtype is not None:
        given = {"param_dtype": dtype, "reduce_dtype": "float32"}
    casts = given.pop("cast_forward_inputs", is_block)
    formats = {name: value and getattr(torch, value) for name, value in given.items()}
    return MixedPrecisionPolicy(**formats, cast_forward_inputs=casts)


# Blocks


def find_blocks(model: nn.Module, config: dict[str, Any]) -> list[nn.Module]:
    """Returns the modules of `model` that are gathered one at a time, inner ones first.

    A module that shares a parameter with another, such as the embedding of a tied head, is left out: the parameter
    stays gathered for as long as one of them needs it.

    Raises:
        MisconfigurationException: if the model has no module of a class that is named.
    """
    policy, least = config.get("auto_wrap_policy"), config.get("min_num_params") or 0
    if policy == WHOLE or (policy == BY_SIZE and not least):
        return []
    names = config.get("transformer_layer_cls_to_wrap")
    return _without_tied(_by_size(model, least) if policy == BY_SIZE else _by_class(model, names), model)


def _by_class(model: nn.Module, names: list[str] | None) -> list[nn.Module]:
    inner = [module for module in model.modules() if module is not model]
    wanted = set(names or getattr(model, "_no_split_modules", None) or ())
    missing = sorted(wanted - {type(module).__name__ for module in inner}) if names else []
    if missing:
        lists = [child for module in model.modules() if isinstance(module, nn.ModuleList) for child in module]
        has = sorted({type(child).__name__ for child in lists}) or sorted({type(module).__name__ for module in inner})
        raise MisconfigurationException(
            f"fsdp_config: transformer_layer_cls_to_wrap names {', '.join(missing)}, but {type(model).__name__} "
            f"contains none. {'Did you mean ' + ' or '.join(has[:8]) + '?' if has else 'Leave it out.'}"
        )
    return [module for module in reversed(inner) if type(module).__name__ in wanted]


def _by_size(model: nn.Module, least: int) -> list[nn.Module]:
    """Returns the modules with at least `least` parameters, without counting smaller such modules inside."""
    from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy

    found: dict[nn.Module, None] = {}

    def note(module: nn.Module) -> nn.Module:
        found[module] = None
        return module

    excluded: Any = set(_NOT_CALLED)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=least, exclude_wrap_modules=excluded)
    _recursive_wrap(model, policy, note, set(), set(), only_wrap_children=True)
    return list(found)


def _without_tied(blocks: list[nn.Module], model: nn.Module) -> list[nn.Module]:
    def counted(module: nn.Module) -> Counter[int]:
        return Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))

    everywhere = counted(model)
    return [block for block in blocks if all(everywhere[each] == times for each, times in counted(block).items())]


def _require_one_format(module: nn.Module) -> None:
    formats = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    if len(formats) > 1:
        named = " and ".join(sorted(str(each).removeprefix("torch.") for each in formats))
        raise MisconfigurationException(
            f"fsdp=True, and {type(module).__name__} has trained parameters in {named}: parameters that are "
            "gathered together must have one number format. Convert the model with .to(torch.float32) before "
            "training."
        )


# Around torch's work


def _broadcast_weights(model: nn.Module, device: torch.device) -> None:
    """Broadcasts the weights and buffers of the first process, in contiguous memory as torch requires."""
    import torch.distributed as dist

    everything = itertools.chain(model.parameters(), model.buffers())
    for tensor in {id(each): each for each in everything}.values():
        there = tensor.detach().to(device).contiguous()
        dist.broadcast(there, 0)
        if isinstance(tensor, nn.Parameter) and not tensor.is_contiguous():
            tensor.data = there
        elif there.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(there)


def _recompute(blocks: list[nn.Module], settings: dict[str, Any]) -> None:
    """Makes each block recompute its activations in the backward pass from the parameters gathered there."""
    if not blocks:
        raise MisconfigurationException(
            "activation_checkpointing in fsdp_config recomputes each block, and no block of this model is known. "
            "Name the class of the blocks with transformer_layer_cls_to_wrap."
        )

    def recomputing(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def recomputed(*args: Any, **kwargs: Any) -> Any:
            if block.training and torch.is_grad_enabled():
                # the second pass would add its keys again, as in T5's decoder
                kwargs.update({name: None for name in CACHES if name in kwargs})
                return checkpoint(forward, *args, **settings, **kwargs)
            return forward(*args, **kwargs)

        return recomputed

    for block in blocks:
        block.forward = recomputing(block, block.forward)
