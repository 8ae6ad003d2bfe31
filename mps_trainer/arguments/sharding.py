"""Reads the settings of sharding: the values of `fsdp` and `fsdp_config`.

The keys are transformers'. Those of PyTorch's first FSDP, of TPUs and of loading are known too, so that an existing
file is either followed or answered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..errors import MisconfigurationException
from ..utils.text import choice_text
from .choices import OptimizerNames
from .readers import FLAGS, check_keys, read_any, read_flag, read_mapping_or_file, read_names, refuse

FULL, SHARDED = "FULL_STATE_DICT", "SHARDED_STATE_DICT"
BY_BLOCK, BY_SIZE, WHOLE = "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"

# option of `fsdp` -> what it stands for in `fsdp_config`
_OPTIONS: dict[str, dict[str, Any]] = {
    "full_shard": {"reshard_after_forward": True},
    "shard_grad_op": {"reshard_after_forward": False},
    "offload": {"cpu_offload": True},
    "auto_wrap": {},
}
# key -> why it changes nothing here
_WITHOUT_EFFECT = {
    "sync_module_states": "all processes start with the weights of the first one",
    "use_orig_params": "it belongs to FSDP1; parameters are always the model's own",
    "limit_all_gathers": "it belongs to FSDP1; FSDP2 limits its memory by itself",
    "forward_prefetch": "it is of FSDP1; FSDP2 fetches ahead by itself",
    "backward_prefetch": "it is of FSDP1; FSDP2 fetches ahead by itself",
    "xla_fsdp_settings": "it is for TPUs",
    "xla_fsdp_grad_ckpt": "it is for TPUs",
}
_DEFAULTS: dict[str, Any] = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}
_FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# optimizers whose step takes one number after the other, which a shard of a parameter has as well as the whole
OPTIMIZERS = (
    OptimizerNames.ADAMW_TORCH,
    OptimizerNames.ADAMW_TORCH_FUSED,
    OptimizerNames.SGD,
    OptimizerNames.ADAGRAD,
    OptimizerNames.RMSPROP,
)


def settle(args: Any) -> None:
    """Sets `args.fsdp` to True and `args.fsdp_config` to a dictionary of known keys if sharding is requested.

    Raises:
        MisconfigurationException: for values that cannot be, and for other arguments that do not go with them.
    """
    fsdp, options = _asked(args.fsdp)
    if not fsdp:
        args.fsdp = False if fsdp is False else None
        if isinstance(args.fsdp_config, os.PathLike):
            args.fsdp_config = os.fspath(args.fsdp_config)
        if args.fsdp_config is not None and not isinstance(args.fsdp_config, (dict, str)):
            raise refuse("fsdp_config", args.fsdp_config, "a dictionary, JSON, or the path of a JSON file")
        return
    given = {} if args.fsdp_config in (None, "") else read_mapping_or_file("fsdp_config", args.fsdp_config)
    args.fsdp, args.fsdp_config = True, {**_DEFAULTS, **options, **_checked(given)}
    _check_with_others(args)


def without_effect(args: Any) -> list[str]:
    """Returns a sentence for each setting of `fsdp_config` that has no effect."""
    config = args.fsdp_config
    if not args.fsdp:
        return ["fsdp_config has an effect with fsdp=True only."] if config else []
    said = [
        f"fsdp_config: {name} has no effect: {why}."
        for name, why in _WITHOUT_EFFECT.items()
        if config.get(name) not in (None, False, {}, "NO_PREFETCH")
    ]
    policy = config.get("auto_wrap_policy", BY_BLOCK)
    if config["min_num_params"] and policy != BY_SIZE:
        said.append(f"fsdp_config: min_num_params has no effect without auto_wrap_policy={BY_SIZE!r}.")
    if policy == BY_SIZE and not config["min_num_params"]:
        said.append(
            f"fsdp_config: auto_wrap_policy={BY_SIZE!r} has no effect without min_num_params, as in Accelerate: "
            "each step gathers the whole model at once. Set it, for example min_num_params=10000000."
        )
    if config.get("transformer_layer_cls_to_wrap") and policy != BY_BLOCK:
        said.append(f"fsdp_config: transformer_layer_cls_to_wrap has no effect with auto_wrap_policy={policy!r}.")
    if args.activation_checkpointing:
        said.append(
            "activation_checkpointing=True gathers each block's parameters once more than the "
            "activation_checkpointing of fsdp_config does."
        )
    return said


def _asked(value: Any) -> tuple[Any, dict[str, Any]]:
    """Returns True if sharding is requested, and the settings that options of earlier releases imply."""
    if value is None or isinstance(value, bool):
        return value, {}
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise refuse("fsdp", value, f"true or false, or a list of {', '.join(_OPTIONS)}")
    words = [choice_text(word).lower() for word in words]
    if len(words) == 1 and words[0] in FLAGS:
        return FLAGS[words[0]], {}
    meant: dict[str, Any] = {}
    for word in words:
        if word not in _OPTIONS:
            raise refuse("fsdp", value, f"true or false, or of {', '.join(_OPTIONS)}, with spaces between them")
        for name, stands_for in _OPTIONS[word].items():
            if meant.setdefault(name, stands_for) != stands_for:
                raise refuse("fsdp", value, "one of full_shard and shard_grad_op")
    return (True, meant) if words else (None, {})


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings with transformers' names. A name given with and without prefix must have one value."""
    check_keys("fsdp_config", (key.removeprefix("fsdp_") for key in given), KEYS)
    config: dict[str, Any] = {}
    for key, value in given.items():
        name = key.removeprefix("fsdp_")
        read = KEYS[name](f"fsdp_config: {name}", value)
        if config.setdefault(name, read) != read:
            raise MisconfigurationException(
                f"fsdp_config has {name}={given[name]!r} and fsdp_{name}={given['fsdp_' + name]!r}, which are one key "
                "with two values. Leave one of them out."
            )
    return config


def _check_with_others(args: Any) -> None:
    config = args.fsdp_config
    if config.get("activation_checkpointing") and args.activation_checkpointing:
        raise MisconfigurationException(
            "activation_checkpointing=True and the activation_checkpointing of fsdp_config can't both be set to "
            "True. Keep the one in fsdp_config, which gathers fewer parameters."
        )
    if config.get("state_dict_type") == SHARDED and args.save_on_each_node:
        raise MisconfigurationException(
            f"save_on_each_node=True does not go with {SHARDED} in fsdp_config: the shards of one checkpoint have to "
            f"lie in one folder. Leave it out and give output_dir a folder that all machines share, or use {FULL}."
        )
    if config.get("state_dict_type") == SHARDED and args.push_to_hub and args.hub_strategy != "end":
        raise MisconfigurationException(
            f"hub_strategy={args.hub_strategy.value!r} uploads the weights of each checkpoint, and with {SHARDED} in "
            f"fsdp_config there are only parts of them. Use hub_strategy='end', or {FULL}."
        )
    if args.torch_compile:
        raise MisconfigurationException(
            "torch_compile=True with fsdp=True is not supported, because it is untested. Leave one of them out."
        )
    for name in ("fp16_full_eval", "bf16_full_eval"):
        if getattr(args, name):
            raise MisconfigurationException(
                f"{name}=True does not work with fsdp=True: it would reduce the precision of the shards in "
                f"training. Leave it out, and evaluate with {name.partition('_')[0]}=True."
            )
    if args.optim not in OPTIMIZERS:
        raise MisconfigurationException(
            f"optim='{args.optim.value}' does not go with fsdp=True, which gives each process a part of each "
            f"parameter. Take one of {', '.join(name.value for name in OPTIMIZERS)}."
        )


def _word(*words: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        word = str(getattr(value, "name", value)).upper()
        if word not in words:
            raise refuse(name, value, "one of " + ", ".join(words))
        return word

    return read


def _version(name: str, value: Any) -> int:
    if str(value) != "2":
        raise MisconfigurationException(
            f"{name}={value!r} is not supported: this Trainer shards by PyTorch's FSDP2, which has "
            "taken FSDP1's place. Leave it out."
        )
    return 2


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refuse(name, value, "a whole number of at least 0")
    return value


def _names(name: str, value: Any) -> list[str]:
    return read_names(name, [part.strip() for part in value.split(",")] if isinstance(value, str) else value)


def _never(why: str) -> Callable[[str, Any], bool]:
    def read(name: str, value: Any) -> bool:
        if read_flag(name, value):
            raise MisconfigurationException(f"{name}=True is not supported: {why}. Leave it out.")
        return False

    return read


def _precision(name: str, value: Any) -> dict[str, Any]:
    """Returns the formats of parameters in use, of exchanged gradients, and of outputs, by torch's names."""
    if isinstance(value, str):
        return {"param_dtype": _format(name, value), "reduce_dtype": "float32"}
    known = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")
    if not isinstance(value, dict) or not set(value) <= set(known):
        raise refuse(name, value, f"one of {', '.join(_FORMATS)}, or have {', '.join(known)}")
    return {
        key: read_flag(key, item) if key == "cast_forward_inputs" else item and _format(key, item)
        for key, item in value.items()
    }


def _format(name: str, value: Any) -> str:
    word = str(value).removeprefix("torch.")
    word = _FORMATS.get(word, word)
    if word not in _FORMATS.values():
        raise refuse(name, value, "one of " + ", ".join(_FORMATS))
    return word


KEYS: dict[str, Callable[[str, Any], Any]] = {
    "version": _version,
    "reshard_after_forward": read_flag,
    "cpu_offload": read_flag,
    "activation_checkpointing": read_flag,
    "state_dict_type": _word(FULL, SHARDED),
    "auto_wrap_policy": _word(BY_BLOCK, BY_SIZE, WHOLE),
    "transformer_layer_cls_to_wrap": _names,
    "min_num_params": _number,
    "mixed_precision_policy": _precision,
    "cpu_ram_efficient_loading": _never(
        "every process loads the model, from files that processes on one machine share in its cache"
    ),
    **dict.fromkeys(("xla", "xla_fsdp_v2"), _never("there is no TPU here")),
    **dict.fromkeys(_WITHOUT_EFFECT, read_any),
}
