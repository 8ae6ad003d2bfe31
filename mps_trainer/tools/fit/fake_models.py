"""Builds models of transformers with fake weights in an unchanged script."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from transformers.trainer_pt_utils import nested_numpify

from ...errors import MisconfigurationException
from ...model import mlx_loading
from ...utils.attributes import attributes_replaced
from ...utils.nested import map_tensors
from .fake_tensors import fake_mode, make_fake, modules_convert_fakes
from .quantized import quantize, size_and_format

# These arguments tell from_pretrained about the files with the weights, and its configuration needs the first ones.
_OF_FILES = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")
_OF_LOADING = """
    low_cpu_mem_usage device_map max_memory offload_folder offload_buffers state_dict variant use_safetensors
    weights_only ignore_mismatched_sizes trust_remote_code disable_mmap use_kernels key_mapping _commit_hash
    _from_auto _from_pipeline adapter_kwargs generation_config mirror _fast_init from_tf from_flax offload_state_dict
"""


@contextlib.contextmanager
def models_are_fake() -> Iterator[None]:
    """Makes transformers' models with fake weights inside. Their configurations are loaded, their weights are not.

    `from_pretrained` takes the number format of its `dtype`, else of the configuration, else float32.
    `save_pretrained` writes the configuration alone, and `generate` gives its prompt back. What a Trainer predicts
    with such a model is zeros.
    """
    from transformers import PreTrainedModel
    from transformers.generation import GenerationMixin

    from ...evaluation import predictions

    changes = (
        (PreTrainedModel, "from_pretrained", classmethod(_from_pretrained)),
        (PreTrainedModel, "resize_token_embeddings", _without_means(PreTrainedModel.resize_token_embeddings)),
        (PreTrainedModel, "save_pretrained", _save_pretrained),
        (mlx_loading, "Tensors", FakeTensors),
        (GenerationMixin, "generate", _generate),
        (predictions, "nested_numpify", lambda values: nested_numpify(map_tensors(values, _zeros_if_fake))),
    )
    with modules_convert_fakes(), _made_fake(PreTrainedModel), attributes_replaced(changes):
        yield


class FakeTensors(mlx_loading.Tensors):
    """Gives fake tensors in place of the tensors of an MLX folder; the model's other weights are fake already."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        with fake_mode():
            return torch.empty(shape, dtype=torch.float32 if dtype is None else dtype)

    def check_all_taken(self) -> None:
        pass


@contextlib.contextmanager
def _made_fake(model_class: Any) -> Iterator[None]:
    """Makes the models of this class and its subclasses on the device meta, and then fake."""
    wrapped: set[Any] = set()
    depth = 0

    def wrap(kind: Any) -> None:
        initialise = kind.__init__

        @functools.wraps(initialise)
        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal depth
            depth += 1
            try:
                with torch.device("meta"):
                    initialise(self, *args, **kwargs)
            finally:
                depth -= 1
            if not depth:
                make_fake(self)

        wrapped.add(kind)
        undo.enter_context(attributes_replaced([(kind, "__init__", make)]))

    def new(kind: Any, *args: Any, **kwargs: Any) -> Any:
        if kind not in wrapped:
            wrap(kind)
        return object.__new__(kind)

    with contextlib.ExitStack() as undo:
        # a class that has had a __new__ cannot do without one: object's would refuse the arguments of __init__
        undo.callback(setattr, model_class, "__new__", lambda kind, *args, **kwargs: object.__new__(kind))
        model_class.__new__ = new
        yield


def _from_pretrained(cls: Any, name: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
    """Returns a model with the configuration that is loaded, and with fake weights."""
    import transformers

    dtype = kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None) or "auto"
    quantization, with_info = kwargs.pop("quantization_config", None), kwargs.pop("output_loading_info", False)
    kwargs = {key: value for key, value in kwargs.items() if key not in _OF_LOADING.split()}
    of_files = {key: kwargs.pop(key) for key in _OF_FILES if key in kwargs}
    if isinstance(config, transformers.PreTrainedConfig):
        config = copy.deepcopy(config)
    else:
        where = name if config is None else config
        config, kwargs = cls.config_class.from_pretrained(where, return_unused_kwargs=True, **of_files, **kwargs)
    config.name_or_path = name  # transformers sets it, and TRL loads the tokenizer by it
    if dtype == "auto":
        dtype = config.dtype or torch.float32
    quantization = quantization or getattr(config, "quantization_config", None)
    model = cls._from_config(config, *args, dtype=dtype, **kwargs).eval()
    if quantization is not None:
        how = size_and_format(quantization)
        if how is None:
            raise MisconfigurationException(
                f"{type(quantization).__name__} quantizes weights by another method than bitsandbytes, and the memory "
                "of that method is not known. Run the estimate without it."
            )
        with fake_mode():
            quantize(model.requires_grad_(False), *how)
    if not with_info:
        return model
    return model, {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}


def _without_means(resize: Callable) -> Callable:
    @functools.wraps(resize)
    def resized(self: Any, *args: Any, **kwargs: Any) -> Any:
        with fake_mode():
            return resize(self, *args, **{**kwargs, "mean_resizing": False})

    return resized


def _save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
    """Writes the configuration, from which the model can be loaded again here."""
    self.config.save_pretrained(save_directory)


def _zeros_if_fake(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if isinstance(tensor, FakeTensor) else tensor


def _generate(self: Any, inputs: Any = None, **kwargs: Any) -> Any:
    """Returns the prompt unchanged, because fake models cannot generate."""
    return inputs if inputs is not None else kwargs.get("input_ids")
