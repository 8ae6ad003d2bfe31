"""Declares the types of values in a checkpoint's files, which may have been edited. msgspec checks them.

Keys that a type does not name may have any value.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from .files import damaged, read_json

# An int of Python can be larger, and no generator, tensor or range takes it.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Size = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]
Amount = Annotated[float, Meta(ge=0, le=1e300)]
Text = Annotated[str, Meta(pattern=r"^[^\0]*$")]  # no path has a null character
WeightFile = Annotated[str, Meta(pattern=r"^[^/\0]+\.(safetensors|bin)$")]  # in the folder of its index


class LogEntry(TypedDict, total=False):
    step: Amount | None
    epoch: Amount | None


class CallbackState(TypedDict, total=False):
    args: dict[str, Any]
    attributes: dict[str, Any]


class RequiredState(TypedDict):
    global_step: Count
    epoch: Amount | None
    log_history: list[LogEntry]


class State(RequiredState, total=False):
    """trainer_state.json."""

    best_metric: float | None
    best_model_checkpoint: Text | None
    best_global_step: Count | None
    train_batch_size: Size | None
    total_flos: Amount
    num_input_tokens_seen: Amount
    max_steps: Amount | None
    logging_steps: Amount | None
    eval_steps: Amount | None
    save_steps: Amount | None
    num_train_epochs: Amount | None
    is_local_process_zero: bool
    is_world_process_zero: bool
    is_hyper_param_search: bool
    trial_name: Text | None
    trial_params: dict[str, Any] | None
    stateful_callbacks: dict[str, CallbackState | list[CallbackState]] | None


# An int in a log may be drawn as a float.
LoggedValues = list[dict[str, float | str | bool | list[Any] | dict[str, Any] | None]]


class LossPosition(TypedDict):
    sum: float
    total: float
    first_step: Count
    last_read_step: Count


class Position(LossPosition, total=False):
    """The position of one process, in loop_state.json or, of release 0.1, in rng_state.pth."""

    postponed: list[Literal["evaluate", "save"]]
    due: list[Literal["evaluate", "save"]]
    examples_at_a_time: Size | None


class PositionInEpoch(Position):
    epoch: Count
    batches: Count
    epoch_has_ended: bool


class LoopState(TypedDict):
    """loop_state.json."""

    processes: Annotated[list[dict[str, Any]], Meta(min_length=1)]


class ListedFile(TypedDict):
    size: Count
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class RequiredManifest(TypedDict):
    files: dict[str, ListedFile]


class Manifest(RequiredManifest, total=False):
    """manifest.json."""

    step: Count | None
    save: Size | None
    written: Amount | None
    run: str | None


class WeightsIndex(TypedDict):
    """model.safetensors.index.json."""

    weight_map: Annotated[dict[str, WeightFile], Meta(min_length=1)]


class ParameterGroup(TypedDict):
    params: list[Count]


class OptimizerState(TypedDict):
    """optimizer.pt."""

    state: dict[Any, Any]
    param_groups: list[ParameterGroup]


class ScalerState(TypedDict):
    """scaler.pt."""

    scale: Annotated[float, Meta(gt=0, le=1e300)]
    growth_factor: Annotated[float, Meta(gt=0, le=1e300)]
    backoff_factor: Annotated[float, Meta(gt=0, le=1e300)]
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
