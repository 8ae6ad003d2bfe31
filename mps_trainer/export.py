"""Writes a LoRA adapter of PEFT as the files that mlx-lm loads. Loads no model."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from .checkpoints.schema import Positive, Size
from .errors import MisconfigurationException
from .utils.bounded_file import MOST_BYTES, read_bytes
from .utils.compiled import plain_name
from .utils.text import sentence, shown

if TYPE_CHECKING:
    import torch

__all__ = ["export_to_mlx"]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # PEFT's
MLX_WEIGHTS = "adapters.safetensors"

_MERGE = "Merge the adapter into the model and convert that with mlx_lm.convert instead."
# Keys of adapter_config.json that do not change what a trained adapter computes.
_NO_EFFECT = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config"),
        *("exclude_modules", "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform"),
        *("loftq_config", "lora_ga_config", "megatron_core", "peft_version", "qalora_group_size", "revision"),
        *("runtime_config", "target_modules", "task_type"),
    )
)
# The other methods, such as PiSSA, change the original weights too, and the file has only the difference from these.
_KEEP_ORIGINAL_WEIGHTS = (True, False, None, "gaussian", "eva", "orthogonal")
_NAME = re.compile(r"base_model\.model\.(.+)\.(lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?")
# Other models may have other names in mlx-lm, and it stacks the experts of a layer.
_MODULE = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.(?!.*\bexperts\b).+|lm_head")
_FORMATS = ("float32", "bfloat16", "float16")


class _Kind(msgspec.Struct):
    peft_type: str


class _Settings(_Kind):
    r: Size
    lora_alpha: Positive
    lora_dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    use_rslora: bool = False
    use_dora: bool = False
    init_lora_weights: bool | str | None = True
    rank_pattern: dict[str, Size] | None = None
    alpha_pattern: dict[str, Positive] | None = None

    def rank(self, module: str) -> int:
        return _value_for(module, self.rank_pattern, self.r)

    def scale(self, module: str) -> float:
        rank = self.rank(module)
        return _value_for(module, self.alpha_pattern, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)


@dataclass
class _Layer:
    """The tensors of one adapted layer, as PEFT saves them: `a` is rank x in, `b` out x rank."""

    a: torch.Tensor
    b: torch.Tensor
    magnitude: torch.Tensor | None


def export_to_mlx(adapter_folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> dict[str, Any]:
    """Writes the LoRA or DoRA adapter in a folder as the files that mlx-lm loads.

    mlx-lm has one rank and one scale for all layers. Smaller ranks are filled up with zeros, and other scales are
    multiplied into `lora_b`, so the adapter computes the same.

    Args:
        adapter_folder: a folder with `adapter_model.safetensors` and `adapter_config.json`, such as a checkpoint.
        out: the folder for `adapters.safetensors` and `adapter_config.json`. It must be new or empty.

    Returns:
        The content of the new `adapter_config.json`.

    Raises:
        MisconfigurationException: if files are missing or damaged, if mlx-lm cannot represent the adapter, or if
            `out` is not empty or cannot be written. Nothing is written then.
    """
    adapter_folder, out = os.fspath(adapter_folder), os.fspath(out)
    _require_empty(out)
    settings = _read_settings(adapter_folder)
    config, tensors = _to_mlx(_read_layers(adapter_folder, settings), settings)
    _write(out, config, tensors)
    return config


# Reading


def _read_settings(folder: str) -> _Settings:
    path = os.path.join(folder, CONFIG)
    if not os.path.isfile(path):
        raise MisconfigurationException(_why_no_adapter(folder))
    try:
        found = json.loads(read_bytes(path, MOST_BYTES))
        kind = msgspec.convert(found, _Kind).peft_type
        settings = msgspec.convert(found, _Settings) if kind == "LORA" else None
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise MisconfigurationException(
            f"{path} is not the configuration of a PEFT adapter: {sentence(error)} Name another folder."
        ) from error
    if settings is None:
        raise MisconfigurationException(
            f"{path} describes an adapter of the type {shown(kind, 80)}, and mlx-lm has only LoRA and DoRA. Train "
            "with LoRA, or merge the adapter into the model if PEFT can."
        )
    read = {*_NO_EFFECT, *_Settings.__struct_fields__}
    others = [key for key, value in found.items() if key not in read and value not in (None, False, "none", [], {})]
    if others:
        raise MisconfigurationException(
            f"{path} sets {shown(others[0], 80)} to {shown(found[others[0]], 80)}, and mlx-lm's adapters have no such "
            f"setting. {_MERGE}"
        )
    if settings.init_lora_weights not in _KEEP_ORIGINAL_WEIGHTS:
        raise MisconfigurationException(
            f"{path} sets 'init_lora_weights' to {shown(settings.init_lora_weights, 80)}, which also changed the "
            "original weights. Save the adapter with PEFT's path_initial_model_for_weight_conversion, and export that."
        )
    return settings


def _why_no_adapter(folder: str) -> str:
    if not os.path.isdir(folder):
        return f"There is no folder {folder or repr(folder)}. Name a folder with {CONFIG} and {WEIGHTS}."
    inside = sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name, CONFIG)))
    if inside:
        return f"{folder} has no {CONFIG}. Name one of the folders in it that have one: {', '.join(inside)}."
    return (
        f"{folder} has no {CONFIG}, so there is no PEFT adapter in it. Name a folder with one, or convert a whole "
        "model with mlx_lm.convert."
    )


def _read_layers(folder: str, settings: _Settings) -> dict[str, _Layer]:
    """Returns the adapted layers by their names in the model."""
    from safetensors.torch import load_file

    path, pickled = os.path.join(folder, WEIGHTS), os.path.join(folder, "adapter_model.bin")
    if not os.path.isfile(path) and os.path.isfile(pickled):
        raise MisconfigurationException(
            f"{pickled} is a pickle, which could run code when loaded. Load the adapter with PEFT if you trust the "
            f"file, and save it again as {WEIGHTS}."
        )
    if not os.path.isfile(path):
        raise MisconfigurationException(f"{folder} has {CONFIG} but no {WEIGHTS}. Name another folder.")
    try:
        tensors = load_file(path)
    except Exception as error:  # an edited header takes the reader wherever it likes
        raise MisconfigurationException(
            f"{path} is damaged and cannot be read: {sentence(error)} Name another checkpoint."
        ) from error
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        matched = _NAME.fullmatch(plain_name(name))
        if matched is None:
            raise MisconfigurationException(
                f"{path} has {shown(name)}, and only LoRA and DoRA of linear layers can be exported. {_MERGE}"
            )
        if _MODULE.fullmatch(matched[1]) is None:
            raise MisconfigurationException(
                f"{path} adapts {shown(matched[1])}, which may have another name in mlx-lm: only linear layers in "
                f"model.layers, except experts, and lm_head can be exported. {_MERGE}"
            )
        parts.setdefault(matched[1], {})[matched[2]] = tensor
    if not parts:
        raise MisconfigurationException(f"{path} has no tensors. Name another checkpoint.")
    return {module: _checked_layer(path, module, parts[module], settings) for module in sorted(parts)}


def _checked_layer(path: str, module: str, parts: dict[str, torch.Tensor], settings: _Settings) -> _Layer:
    wanted = {"lora_A", "lora_B", *(["lora_magnitude_vector"] if settings.use_dora else [])}
    rank = settings.rank(module)
    shapes = {name: list(tensor.shape) for name, tensor in parts.items()}
    fits = (
        parts.keys() == wanted
        and all(str(tensor.dtype).removeprefix("torch.") in _FORMATS for tensor in parts.values())
        and len(shapes["lora_A"]) == len(shapes["lora_B"]) == 2
        and shapes["lora_A"][0] == shapes["lora_B"][1] == rank
        and shapes.get("lora_magnitude_vector", shapes["lora_B"][:1]) == shapes["lora_B"][:1]
    )
    if not fits:
        found = ", ".join(f"{name} {parts[name].dtype} {shape}" for name, shape in sorted(shapes.items()))
        kind = "DoRA" if settings.use_dora else "LoRA"
        raise MisconfigurationException(
            f"{path} does not fit {CONFIG}, which says {kind} of rank {rank}: {shown(module)} has {found}. Linear "
            f"layers in {', '.join(_FORMATS)} can be exported."
        )
    return _Layer(parts["lora_A"], parts["lora_B"], parts.get("lora_magnitude_vector"))


def _value_for(module: str, pattern: dict[str, Any] | None, default: Any) -> Any:
    """Returns the value of the first key that matches the name of a module, as in PEFT, or `default`."""
    for key, value in (pattern or {}).items():
        try:
            if re.match(rf"(.*\.)?({key})$", module):
                return value
        except re.error as error:
            raise MisconfigurationException(
                f"{CONFIG} has the pattern {shown(key)}, which is no regular expression: {sentence(error)}"
            ) from error
    return default


# Writing


def _to_mlx(layers: dict[str, _Layer], settings: _Settings) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Returns mlx-lm's configuration and tensors."""
    from torch.nn.functional import pad

    rank = max(settings.rank(module) for module in layers)
    (scale, _), *_ = Counter(map(settings.scale, layers)).most_common(1)
    tensors = {}
    for module, layer in layers.items():
        missing = rank - settings.rank(module)
        factor = settings.scale(module) / scale
        b = layer.b if factor == 1 else layer.b.float() * factor
        tensors[f"{module}.lora_a"] = pad(layer.a.T, (0, missing)).contiguous()
        tensors[f"{module}.lora_b"] = pad(b.T, (0, 0, 0, missing)).contiguous()
        if layer.magnitude is not None:
            tensors[f"{module}.m"] = layer.magnitude
    numbers = [int(module.split(".")[2]) for module in layers if module.startswith("model.layers.")]
    return {
        "fine_tune_type": "dora" if settings.use_dora else "lora",
        # mlx-lm adapts `keys` in its last `num_layers` layers and, by whole names, anywhere in the model. Whole names
        # need not know how many layers the model has, and may differ between layers.
        "num_layers": max(numbers, default=-1) + 1,
        "lora_parameters": {"rank": rank, "scale": scale, "dropout": settings.lora_dropout, "keys": list(layers)},
    }, tensors


def _require_empty(out: str) -> None:
    if not out:
        raise MisconfigurationException("The folder to write has an empty name. Name one that does not exist yet.")
    try:
        has_files = os.path.isdir(out) and bool(os.listdir(out))
    except OSError as error:
        raise _not_writable(out, error) from error
    if has_files:
        raise MisconfigurationException(
            f"{out} is not empty, and nothing was exported. Name a folder that does not exist yet."
        )
    if os.path.lexists(out) and not os.path.isdir(out):
        raise MisconfigurationException(f"{out} is not a folder, and nothing was exported. Name a folder.")


def _write(out: str, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save

    contents = {MLX_WEIGHTS: save(tensors), CONFIG: json.dumps(config, indent=4).encode() + b"\n"}
    is_new = not os.path.isdir(out)
    try:
        os.makedirs(out, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: the name has a null character
        raise _not_writable(out, error) from error
    try:
        for name, content in contents.items():
            with open(os.path.join(out, name), "wb") as file:
                file.write(content)
    except BaseException as error:
        for name in contents:
            with contextlib.suppress(OSError):
                os.remove(os.path.join(out, name))
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(out)
        if isinstance(error, OSError):
            raise _not_writable(out, error) from error
        raise


def _not_writable(out: str, error: Exception) -> MisconfigurationException:
    reason = getattr(error, "strerror", None) or str(error)
    return MisconfigurationException(
        f"The adapter cannot be written to {out}: {reason}. Name a folder that you may write to."
    )
