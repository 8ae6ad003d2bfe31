"""Defines transformers' `AcceleratorConfig`, the settings of batches and processes, whose own module needs torch."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, fields
from typing import Any

from ..errors import MisconfigurationException, NotAnObjectError
from .checks import coerce
from .fields import declarations
from .readers import check_keys, read_mapping_or_file


@dataclass
class AcceleratorConfig:
    """Holds the settings of the loaders. Those about several processes have no effect with one.

    Args:
        split_batches: the batch size counts the examples of all processes together.
        dispatch_batches: changes nothing: every process loads its own batches.
        even_batches: changes nothing: no example is used twice, and processes share the rest evenly.
        use_seedable_sampler: the order of an epoch follows from its number and a seed; otherwise it is drawn from
            torch's generator.
        non_blocking: copies to the device do not wait for each other; cuda with pinned memory only.
        gradient_accumulation_kwargs: `num_steps`, which stands for gradient_accumulation_steps where that is 1.
        use_configured_state: a state of Accelerate's has to exist.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    non_blocking: bool = False
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    use_configured_state: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings without `use_configured_state`, as in transformers."""
        values = copy.deepcopy(vars(self))
        del values["use_configured_state"]
        return values

    def __eq__(self, other: object) -> bool:
        """Returns True for settings with the same values, transformers' too."""
        as_dict = getattr(other, "to_dict", None)
        if as_dict is None:
            return NotImplemented
        return self.to_dict() == {name: value for name, value in as_dict().items() if name != "use_configured_state"}


def accelerator_config(name: str, value: Any) -> AcceleratorConfig:
    """Returns settings from a dictionary, JSON, the path of a JSON file, or an object with settings.

    Raises:
        NotAnObjectError: for a class instead of an object.
        MisconfigurationException: for anything else.
    """
    if isinstance(value, type):
        raise NotAnObjectError(
            f"Tried passing in a callable to `{name}`, the class {value.__name__}. Pass an object of it: "
            f"{value.__name__}()."
        )
    known = [field.name for field in fields(AcceleratorConfig)]
    if all(hasattr(value, each) for each in known):
        value = {each: getattr(value, each) for each in known}
    values = read_mapping_or_file(name, value)
    check_keys(name, values, known)
    config = AcceleratorConfig(**values)
    coerce(config, declarations(AcceleratorConfig))
    states = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    if config.use_configured_state and not getattr(states, "_shared_state", None):
        raise MisconfigurationException(
            f"{name} has use_configured_state=True, but Accelerate's state is not initialised. Please define this "
            "beforehand, with accelerate.PartialState(), or leave it out: with one process it has no effect."
        )
    return config


def accumulation_steps(args: Any) -> int:
    """Returns how many batches make an update, from `accelerator_config` or `gradient_accumulation_steps`.

    Raises:
        MisconfigurationException: if both are given.
    """
    config: Any = args.accelerator_config
    steps: int | None = (config.gradient_accumulation_kwargs or {}).get("num_steps")
    if steps is not None and args.gradient_accumulation_steps > 1:
        raise MisconfigurationException(
            "The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is greater than 1: "
            "both say how many batches make an update. Leave one of them out."
        )
    return steps or args.gradient_accumulation_steps
