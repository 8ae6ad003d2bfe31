"""Recomputes activations in the backward pass instead of storing them."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from ..utils.text import shown

logger = logging.getLogger(__name__)

# What transformers' models keep about it: for each layer, and for the hooks by which embeddings require gradients
_STATE = ("gradient_checkpointing", "_gradient_checkpointing_func", "_require_grads_hooks", "_require_grads_hook")


def enable_activation_checkpointing(model: nn.Module, args: TrainingArguments) -> None:
    """Makes the model recompute activations in the backward pass with the same random numbers.

    Raises:
        MisconfigurationException: if the model has no such switch, or torch does not take the arguments.
    """
    # transformers 5 gave the method its new name on the way; both are in the supported range
    enable = getattr(model, "activation_checkpointing_enable", None) or getattr(
        model, "gradient_checkpointing_enable", None
    )
    if enable is None:
        raise MisconfigurationException(
            f"activation_checkpointing=True, but {type(model).__name__} has no gradient_checkpointing_enable(). "
            "Leave it out, or use torch.utils.checkpoint in the model's forward()."
        )
    asked: Any = args.activation_checkpointing_kwargs
    given = dict(asked or {})
    parameters = inspect.signature(enable).parameters
    # sentence-transformers passes on what its method does not name
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    names = [name for name in ("every_n_layers", "offload") if name in given and (takes_any or name in parameters)]
    of_layers = {name: given.pop(name) for name in names}
    if str(enable.__module__).startswith("transformers."):  # a model of one's own may take other keys
        _check_keywords(given, of_layers)
    if of_layers.get("offload") and args.device.type in ("cpu", "mps"):
        logger.warning(
            "offload in activation_checkpointing_kwargs has no effect: %s has no memory apart from the host's.",
            args.device.type,
        )
        del of_layers["offload"]
    enable(checkpoint_settings(given, args.device), **of_layers)


@contextlib.contextmanager
def checkpointing_restored(model: nn.Module) -> Iterator[None]:
    """Inside, `model` may be made to recompute activations; afterwards its layers do what they did before."""
    before = {
        module: {name: vars(module)[name] for name in _STATE if name in vars(module)} for module in model.modules()
    }
    try:
        yield
    finally:
        for module, values in before.items():
            for name in _STATE:
                vars(module).pop(name, None)
            vars(module).update(values)


def _check_keywords(given: dict[str, Any], of_layers: dict[str, Any]) -> None:
    """Raises MisconfigurationException for arguments that torch.utils.checkpoint or transformers does not take.

    torch would pass an unknown one on to the layer, which raises in the middle of the first step.
    """
    accepted = [*inspect.signature(checkpoint).parameters, "preserve_rng_state"]  # torch takes it out of its kwargs
    accepted = [name for name in accepted if name not in ("function", "args", "kwargs")]
    problem, layers, offload = None, of_layers.get("every_n_layers", 1), of_layers.get("offload", False)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        problem = f"every_n_layers={shown(layers)}, which must be a whole number from 1 on."
    if not isinstance(offload, bool):
        problem = f"offload={shown(offload)}, which must be true or false."
    for name, value in given.items():
        if name not in accepted:
            problem = f"{shown(name)}, which torch.utils.checkpoint does not take. It takes {', '.join(accepted)}."
        elif name not in ("determinism_check", "context_fn") and not isinstance(value, bool | None):
            problem = f"{name}={shown(value)}, which must be true or false."
    if problem is None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                checkpoint(torch.clone, torch.zeros((), device="cpu", requires_grad=True), **given)
        except (TypeError, ValueError) as error:
            problem = f"values that torch.utils.checkpoint refuses: {error}"
    if problem is not None:
        raise MisconfigurationException(
            f"activation_checkpointing_kwargs (gradient_checkpointing_kwargs) has {problem}"
        )


def checkpoint_settings(given: Any, device: torch.device) -> dict[str, Any]:
    """Returns the arguments of torch.utils.checkpoint: those `given`, and on mps contexts that repeat dropout.

    torch.utils.checkpoint restores the generator of a device whose module has `_initialized`, and torch.mps has not
    (pytorch issue 127676): dropout drops others the second time, and every gradient behind it is wrong.
    """
    settings = dict(given or {"use_reentrant": False})
    if device.type != "mps" or not settings.get("preserve_rng_state", True) or "context_fn" in settings:
        return settings
    if settings.get("use_reentrant", True):
        warnings.warn(
            "activation_checkpointing_kwargs has use_reentrant=True. With it, torch draws different dropout masks "
            "on mps in the forward and backward pass, so gradients are wrong if the model has dropout (pytorch "
            "issue 127676). Use use_reentrant=False, the default here, which uses the same masks.",
            UserWarning,
            stacklevel=2,
        )
        return settings
    return {**settings, "context_fn": same_draws_twice}


def same_draws_twice() -> tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]:
    """Returns contexts for the computation and the recomputation, with the same random numbers of mps.

    While torch.compile traces a graph, it returns dispatch modes, the only contexts that torch takes there.
    """
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:  # torch checks it so
        return create_selective_checkpoint_contexts(_keep_draws)
    drawn_from: list[torch.Tensor] = []

    @contextlib.contextmanager
    def first() -> Iterator[None]:
        drawn_from.append(torch.mps.get_rng_state())  # kept on the host: nothing waits for the device
        yield

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        now = torch.mps.get_rng_state()
        torch.mps.set_rng_state(drawn_from[0])
        try:
            yield
        finally:
            torch.mps.set_rng_state(now)

    return first(), again()


def _keep_draws(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Recomputes all operators except random ones, because a graph on mps cannot draw the same numbers again."""
    draws = torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
    return CheckpointPolicy.MUST_SAVE if draws else CheckpointPolicy.PREFER_RECOMPUTE
