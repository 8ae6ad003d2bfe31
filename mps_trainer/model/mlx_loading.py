"""Loads language models in MLX's quantized format into transformers' models."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..devices import DeviceRequest, gather_facts, resolve
from ..errors import MisconfigurationException
from .mlx_layers import BITS, GROUPS, MLXEmbedding, MLXLinear, packed_bytes

_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_QUANTIZATION = "quantization"  # MLX's name of its settings in config.json
_PARTS = ("scales", "biases")


def load_mlx_model(
    name_or_folder: str | os.PathLike,
    dtype: Any = torch.bfloat16,
    device: str | torch.device | None = None,
    **hub: Any,
) -> Any:
    """Returns transformers' model with the frozen, quantized weights of a model in MLX's format.

    Linear layers and embeddings stay quantized. Train adapters on it: the weights are frozen. `mlx_lm.convert` makes
    such models, and mlx-community on the hub has many.

    Args:
        name_or_folder: a folder, or a name on the hub.
        dtype: the dtype of scales, norms and activations, or its name.
        device: where the weights go. Default: the device that a Trainer chooses.
        hub: `cache_dir`, `revision`, `token` and `local_files_only`, as for `from_pretrained`.

    Raises:
        MisconfigurationException: if the folder has no such model, its files are damaged, or it is a kind of model
            whose tensors have other names in transformers.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    given, dtype = dtype, getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise MisconfigurationException(f"dtype={given!r} is not a floating-point dtype of torch, such as 'bfloat16'.")
    folder = _folder_of(name_or_folder, hub)
    settings = _settings_of(folder)
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, OSError, KeyError) as error:
        raise _refused(folder, f"transformers cannot read its config.json: {_line(error)}") from error
    for name in (_QUANTIZATION, "quantization_config"):
        if hasattr(config, name):
            delattr(config, name)
    tensors = Tensors(folder)
    if device is None:
        device = resolve(DeviceRequest(), gather_facts()).device
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        except ValueError as error:
            raise _refused(folder, "it is no language model that transformers knows") from error
    fill(model, tensors, settings, dtype, torch.device(device))
    model.config._name_or_path = model.name_or_path = str(name_or_folder)
    model.save_pretrained = functools.partial(_refuse_saving, str(name_or_folder))
    if isinstance(model.get_output_embeddings(), MLXLinear):
        model.tie_weights = _tie_nothing  # a quantized head has the packed values of the embeddings already
        model._tied_weights_keys = None
    with contextlib.suppress(OSError):  # many have no generation_config.json
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.eval()


def is_mlx_model(name_or_folder: str | os.PathLike, **hub: Any) -> bool:
    """Returns True for a model in MLX's quantized format, by its config.json.

    Args:
        name_or_folder: a folder, or a name on the hub, from which the file is loaded.
        hub: see `load_mlx_model`.
    """
    from transformers.utils import cached_file

    path = Path(name_or_folder, "config.json")
    if not path.parent.is_dir():
        try:
            found = cached_file(str(name_or_folder), "config.json", **hub)
        except (OSError, ValueError):  # whoever loads the model says why
            return False
        path = Path(found or "")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and isinstance(config.get(_QUANTIZATION), dict)


def fill(model: Any, tensors: Tensors, settings: Settings, dtype: torch.dtype, device: Any) -> None:
    """Puts the tensors into a model on the meta device."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if f"{name}.scales" in tensors:
            parent, _, child = name.rpartition(".")
            setattr(modules[parent], child, _quantized(name, module, tensors, settings, dtype, device))
    is_tied = model.config.get_text_config().tie_word_embeddings
    if is_tied:
        _tie(model)
    for name, parameter in list(model.named_parameters()):
        if not parameter.is_meta:
            continue
        value = tensors.take(name, tuple(parameter.shape)).to(device=device, dtype=dtype)
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, nn.Parameter(value, requires_grad=False))
    if is_tied and not isinstance(model.get_output_embeddings(), MLXLinear):
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    tensors.check_all_taken()
    for module in model.modules():
        own = [name for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta]
        for name in own:
            module._buffers[name] = torch.empty_like(module._buffers[name], device=device)
        if own:
            model._init_weights(module)  # frequencies of rotary embeddings, which no file has


def _quantized(
    name: str,
    module: nn.Module,
    tensors: Tensors,
    settings: Settings,
    dtype: torch.dtype,
    device: Any,
) -> nn.Module:
    """Returns the quantized layer in place of a module."""
    bits, group_size = settings.of(name)
    factor = None
    if isinstance(module, nn.Linear):
        rows, columns = module.out_features, module.in_features
    elif isinstance(module, nn.Embedding):
        rows, columns = module.num_embeddings, module.embedding_dim
        if type(module) is not nn.Embedding:
            factor = getattr(module, "scalar_embed_scale", None)
            if factor is None:
                raise tensors.refused(f"{name} is a {type(module).__name__}, which is not supported")
    else:
        raise tensors.refused(f"{name} is quantized, and transformers has a {type(module).__name__} there")
    packed = tensors.take(f"{name}.weight", (rows, packed_bytes(columns, bits) // 4), torch.uint32)
    packed = packed.view(torch.uint8).to(device)
    groups = (rows, columns // group_size)
    scales, biases = (tensors.take(f"{name}.{part}", groups).to(device=device, dtype=dtype) for part in _PARTS)
    if isinstance(module, nn.Embedding):
        return MLXEmbedding(packed, scales, biases, bits, module.padding_idx, factor)
    bias = None
    if module.bias is not None:
        bias = tensors.take(f"{name}.bias", (rows,)).to(device=device, dtype=dtype)
    return MLXLinear(packed, scales, biases, bits, bias)


def _refuse_saving(name: str, *args: Any, **kwargs: Any) -> None:
    raise MisconfigurationException(
        f"A model loaded from {name} in MLX's format cannot be saved as a whole. Save its adapter: give the Trainer "
        "the model that peft.get_peft_model returns."
    )


def _tie_nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _tie(model: Any) -> None:
    """Lets the head use the weights of the embeddings."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(embeddings, MLXEmbedding):
        head.weight = embeddings.weight
        return
    head = MLXLinear(embeddings.packed_weight, embeddings.scales, embeddings.biases, embeddings.bits)
    model.set_output_embeddings(head)


class Settings:
    """Knows bits and group size of each layer, from `quantization` in config.json."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder, self._settings = folder, settings
        layers = {name: value for name, value in settings.items() if isinstance(value, dict)}
        for where, each in {"quantization": settings, **layers}.items():
            if each.get("mode", "affine") != "affine":
                raise _refused(
                    folder, f"{where} in its config.json has mode {each['mode']!r}, and only affine is read"
                )
            bits, group_size = each.get("bits"), each.get("group_size")
            if bits not in BITS or group_size not in GROUPS:
                raise _refused(
                    folder,
                    f"{where} in its config.json has bits {bits!r} and group_size {group_size!r}; MLX's are one of "
                    f"{BITS} and {GROUPS}",
                )

    def of(self, name: str) -> tuple[int, int]:
        """Returns bits and group size of the layer `name`."""
        own = self._settings.get(name)
        settings = own if isinstance(own, dict) else self._settings
        return settings["bits"], settings["group_size"]


def _settings_of(folder: Path) -> Settings:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refused(folder, f"its config.json cannot be read: {_line(error)}") from error
    settings = config.get(_QUANTIZATION) if isinstance(config, dict) else None
    if not isinstance(settings, dict):
        raise _refused(
            folder,
            'its config.json has no "quantization", so it is not in MLX\'s quantized format. Load it with '
            "transformers' from_pretrained, or quantize it with mlx_lm.convert -q",
        )
    return Settings(folder, settings)


def _folder_of(name_or_folder: str | os.PathLike, hub: Mapping[str, Any]) -> Path:
    """Returns the folder of a model, which is downloaded if it is a name on the hub."""
    folder = Path(name_or_folder)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(str(name_or_folder), allow_patterns=_FILES, **hub))
    except (HFValidationError, OSError, ValueError) as error:
        raise MisconfigurationException(
            f"There is no folder {name_or_folder}, and it cannot be loaded from the hub: {_line(error)}"
        ) from error


class Tensors:
    """Reads the tensors of a folder one at a time, and knows which are left."""

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self._folder, self._files, self._places, self._left = folder, {}, {}, set()
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise self.refused("it has no *.safetensors")
        for path in paths:
            try:
                file: Any = safe_open(str(path), framework="pt")
                names = list(file.keys())
            except (SafetensorError, OSError) as error:
                raise self.refused(f"{path.name} cannot be read: {_line(error)}") from error
            self._files[path.name] = file
            self._places.update(dict.fromkeys(names, file))
        self._left = {name for name in self._places if not name.endswith("rotary_emb.inv_freq")}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns a tensor of this shape; its memory is that of the file."""
        if name not in self._places:
            raise self.refused(f"it has no tensor {name}, which transformers' model has")
        value: torch.Tensor = self._places[name].get_tensor(name)
        is_kind = value.dtype is dtype if dtype is not None else value.is_floating_point()
        if tuple(value.shape) != shape or not is_kind:
            kind = str(dtype).removeprefix("torch.") if dtype is not None else "floating-point numbers"
            raise self.refused(
                f"its tensor {name} has the shape {tuple(value.shape)} and {str(value.dtype).removeprefix('torch.')}, "
                f"where its config.json asks for {shape} and {kind}"
            )
        self._left.discard(name)
        return value

    def check_all_taken(self) -> None:
        if self._left:
            raise self.refused(f"transformers' model has no place for its tensor {min(self._left)}")

    def refused(self, reason: str) -> MisconfigurationException:
        return _refused(self._folder, reason)


def _refused(folder: Path, reason: str) -> MisconfigurationException:
    return MisconfigurationException(f"{folder} cannot be loaded as a model of MLX: {reason}.")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
