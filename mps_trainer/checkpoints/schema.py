"""Declares the types of values in a checkpoint's files, which may have been edited. msgspec checks them.

Keys that a type does not name may have any value.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from .files import damaged, read_json

# An int of Python can be larger, and no generator, tensor or range takes it.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Size = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]
Amount = Annotated[float, Meta(ge=0, le=1e300)]
Positive = Annotated[float, Meta(gt=0, le=1e300)]
Text = Annotated[str, Meta(pattern=r"^[^\0]*$")]  # no path has a null character
WeightFile = Annotated[str, Meta(pattern=r"^[^/\0]+\.(safetensors|bin)$")]  # in the folder of its index


class LogEntry(Struct):
    step: Amount | None = None
    epoch: Amount | None = None


class CallbackState(Struct):
    args: dict[str, Any] = {}
    attributes: dict[str, Any] = {}


class State(Struct, kw_only=True):
    """trainer_state.json, without the values that the run sets anew."""

    global_step: Count
    epoch: Amount | None
    log_history: list[LogEntry]
    best_metric: float | None = None
    best_model_checkpoint: Text | None = None
    best_global_step: Count | None = None
    train_batch_size: Size | None = None
    total_flos: Amount = 0
    num_input_tokens_seen: Amount = 0
    is_hyper_param_search: bool = False
    trial_name: Text | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: dict[str, CallbackState | list[CallbackState]] | None = None


# An int in a log may be drawn as a float.
LoggedValues = list[dict[str, float | str | bool | list[Any] | dict[str, Any] | None]]


class Position(Struct, kw_only=True):
    """The position of one process, in loop_state.json or, of release 0.1, in rng_state.pth."""

    sum: float
    total: float
    first_step: Count
    last_read_step: Count
    postponed: list[Literal["evaluate", "save", "stop"]] = []
    due: list[Literal["evaluate", "save"]] = []
    examples_at_a_time: Size | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    accumulation: Size = 1
    batches_per_epoch: Size | None = None
    epoch_is_cut: bool = False
    loader_has_ended: bool = False


class PositionInEpoch(Position):
    epoch: Count
    batches: Count
    epoch_has_ended: bool


class LoopState(Struct):
    """loop_state.json."""

    processes: Annotated[list[dict[str, Any]], Meta(min_length=1)]


class ListedFile(Struct):
    size: Count
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(Struct):
    """manifest.json."""

    files: dict[str, ListedFile]
    step: Count | None = None
    save: Size | None = None
    written: Amount | None = None
    run: str | None = None


class WeightsIndex(Struct):
    """model.safetensors.index.json."""

    weight_map: Annotated[dict[str, WeightFile], Meta(min_length=1)]


class ParameterGroup(Struct):
    params: list[Count]


class OptimizerState(Struct):
    """optimizer.pt."""

    state: dict[Any, Any]
    param_groups: list[ParameterGroup]


class ScalerState(Struct):
    """scaler.pt."""

    scale: Positive
    growth_factor: Positive
    backoff_factor: Positive
    growth_interval: Size
    _growth_tracker: Count


def check(path: str, value: Any, kind: Any) -> None:
    """Raises MisconfigurationException if `value`, from the file at `path`, is not of type `kind`."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeError) as error:  # UTF-8 has no half of a surrogate pair, and JSON has
        raise damaged(path, ValueError(str(error))) from error


def fits(value: Any, kind: Any) -> bool:
    """Returns True if `value` is of type `kind`."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeError):
        return False
    return True


def read(path: str, kind: Any) -> Any:
    """Returns the content of a JSON file of type `kind`, as it is.

    json reads it: transformers writes NaN into trainer_state.json, which msgspec's own reader refuses.

    Raises:
        MisconfigurationException: for a file that is damaged or of another type.
    """
    value = read_json(path)
    check(path, value, kind)
    return value
