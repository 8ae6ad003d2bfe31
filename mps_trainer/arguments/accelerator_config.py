"""Defines transformers' `AcceleratorConfig`, the settings of batches and processes, without torch."""

from __future__ import annotations

import copy
import json
import os
import sys
from dataclasses import dataclass, fields
from typing import Any

from ..errors import MisconfigurationException, NotAnObjectError
from ..utils.bounded_file import MOST_BYTES, read_text
from ..utils.text import shown


@dataclass(eq=False)
class AcceleratorConfig:
    """Holds the settings of the loaders. Those about several processes have no effect with one.

    Args:
        split_batches: the batch size is that of all processes together.
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

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike) -> AcceleratorConfig:
        """Raises MisconfigurationException if the file has no such settings."""
        try:
            values = json.loads(read_text(os.fspath(json_file), MOST_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise MisconfigurationException(
                f"accelerator_config={os.fspath(json_file)!r} cannot be read: {error}."
            ) from error
        return cls.from_dict(values, os.fspath(json_file))

    @classmethod
    def from_dict(cls, values: Any, source: str = "accelerator_config") -> AcceleratorConfig:
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or not set(values) <= set(names):
            unknown = sorted(map(str, set(values) - set(names))) if isinstance(values, dict) else values
            raise MisconfigurationException(
                f"{source} has {shown(unknown)}, and may have {', '.join(names)}. Leave it out."
            )
        for name, value in values.items():
            allowed: tuple[type, ...] = (bool, type(None)) if name == "dispatch_batches" else (bool,)
            if name == "gradient_accumulation_kwargs":
                allowed = (dict, type(None))
            if not isinstance(value, allowed):
                kind = " or ".join({dict: "a dictionary", bool: "true or false"}.get(a, "null") for a in allowed)
                raise MisconfigurationException(f"{source}: {name}={value!r} is not accepted: it must be {kind}.")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings without `use_configured_state`, as in transformers."""
        return {name: copy.deepcopy(value) for name, value in vars(self).items() if name != "use_configured_state"}

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def __eq__(self, other: object) -> bool:
        """Returns True for settings with the same values, transformers' too."""
        as_dict = getattr(other, "to_dict", None)
        if as_dict is None:
            return NotImplemented
        return self.to_dict() == {name: value for name, value in as_dict().items() if name != "use_configured_state"}

    __hash__ = None  # type: ignore[assignment]


def accelerator_config(value: Any) -> Any:
    """Returns settings from None, a dictionary, JSON, the path of a JSON file, or an object with settings.

    Raises:
        NotAnObjectError: for a class instead of an object.
        MisconfigurationException: for anything else.
    """
    config = _read(value)
    states = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    if config.use_configured_state and not getattr(states, "_shared_state", None):
        raise MisconfigurationException(
            "accelerator_config has use_configured_state=True, but Accelerate's state is not initialised. Please "
            "define this beforehand, with accelerate.PartialState(), or leave it out: with one process it has no "
            "effect."
        )
    return config


def _read(value: Any) -> Any:
    if value is None:
        return AcceleratorConfig()
    if isinstance(value, type):
        raise NotAnObjectError(
            f"Tried passing in a callable to `accelerator_config`, the class {value.__name__}. Pass an object of it: "
            f"{value.__name__}()."
        )
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise MisconfigurationException(f"accelerator_config={shown(value)} is not JSON: {error}.") from None
    if isinstance(value, dict):
        return AcceleratorConfig.from_dict(value)
    if isinstance(value, (str, os.PathLike)) and "\0" not in os.fspath(value) and os.fspath(value):
        return AcceleratorConfig.from_json_file(value)
    names = [field.name for field in fields(AcceleratorConfig)]
    if all(hasattr(value, name) for name in names):
        return AcceleratorConfig.from_dict({name: getattr(value, name) for name in names})
    raise MisconfigurationException(
        f"accelerator_config={shown(value)} is not accepted: it must be a dictionary, the path of a JSON file, or an "
        "AcceleratorConfig."
    )
