"""Defines the script's arguments: those of TRL's `trl sft`, with defaults for a Mac with 16 GB."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from mps_trainer import MisconfigurationException
from mps_trainer.devices import ACCELERATORS, gather_facts
from mps_trainer.scripts.flags import unknown_flag
from mps_trainer.scripts.loading import require_dataset, require_folder_or_name, require_packages
from mps_trainer.utils.text import sentence

NAME = "run_sft.py"
# None is settled in `settle`: by the device, the model and the data.
DEFAULTS = {
    "use_peft": True,
    "dtype": None,
    "assistant_only_loss": None,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "train_sampling_strategy": "bucket_by_length",
    "save_steps": 50,
    "save_total_limit": 2,
}
ADAPTER_LEARNING_RATE = 2e-4  # ten times TRL's default, which is for training all weights
# For the tiny model, whose weights are random: embeddings and head know no word yet, so they are trained as well.
EMBEDDED_DEFAULTS = {
    "learning_rate": 5e-3,
    "num_train_epochs": 20.0,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "logging_steps": 50,
    "save_strategy": "epoch",
    "save_total_limit": 1,
    "gradient_checkpointing": False,
    "bf16": False,
    "assistant_only_loss": True,
    "train_sampling_strategy": "random",
    "lora_modules_to_save": ["embed_tokens", "lm_head"],
}


def parse(argv: list[str]) -> tuple[Any, Any, Any]:
    """Returns TRL's ScriptArguments with four more fields, its ModelConfig and its SFTConfig.

    `--config FILE` names a YAML file of flags, as with TRL. `assistant_only_loss` is None where the data and the chat
    template have to decide.

    Raises:
        MisconfigurationException: for missing packages, unknown flags, and values that cannot be right.
    """
    require_packages(NAME, ("trl", "peft", "datasets", "accelerate"), "libraries")
    import yaml
    from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser

    @dataclass
    class ChatArguments(ScriptArguments):
        embedded: bool = field(
            default=False,
            metadata={"help": "Train on the chats that come with this script. [without --dataset_name]"},
        )
        prompt: str | None = field(
            default=None,
            metadata={"help": "The question that the model answers before and after. [the first held back]"},
        )
        max_new_tokens: int = field(default=100, metadata={"help": "Tokens of its answer, at most."})
        merge: bool = field(
            default=False,
            metadata={"help": "Also write the model with the adapter in its weights, to OUTPUT_DIR/merged."},
        )

    class Parser(TrlParser):
        def error(self, message: str) -> NoReturn:
            raise MisconfigurationException(f"{message.rstrip('.')}. `{NAME} --help` lists the flags.")

    about = (
        "Fine-tune a language model on chats with TRL's SFTTrainer, by LoRA. The defaults are for a Mac with 16 GB."
    )
    parser = Parser((ChatArguments, ModelConfig, SFTConfig), prog=NAME, description=about, allow_abbrev=False)
    parser.set_defaults(**DEFAULTS)
    try:
        model = Parser((ModelConfig,), prog=NAME, add_help=False, allow_abbrev=False)
        model.set_defaults(use_peft=True)
        named, _ = model.parse_args_and_config(argv, return_remaining_strings=True)
        if named.model_name_or_path is None:
            parser.set_defaults(**EMBEDDED_DEFAULTS)
        elif named.use_peft:
            parser.set_defaults(learning_rate=ADAPTER_LEARNING_RATE)
        *parsed, unknown = parser.parse_args_and_config(argv, return_remaining_strings=True)
        typed = parser.parse_known_args(argv)[0]  # TRL's config has replaced bf16=None by True
    except IndexError as error:  # TRL's parser takes the word after --config for its value without looking
        raise MisconfigurationException("--config: expected the name of a YAML file.") from error
    except OSError as error:
        raise MisconfigurationException(f"--config {error.filename} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise MisconfigurationException(sentence(error)) from error
    if unknown:
        raise MisconfigurationException(unknown_flag(parser, unknown[0]))
    script_args, model_args, training_args = parsed
    check(script_args, model_args)
    settle(model_args, training_args, typed)
    return script_args, model_args, training_args


def check(script_args: Any, model_args: Any) -> None:
    """Raises MisconfigurationException for flags, data and model that are invalid or conflict."""
    data, model = script_args.dataset_name, model_args.model_name_or_path
    if script_args.embedded and data is not None:
        raise MisconfigurationException("--embedded and --dataset_name are two sources of chats: give one of them.")
    if data is not None and model is None:
        raise MisconfigurationException(
            "--model_name_or_path is missing: give a model's folder or name. The tiny model knows the embedded chats' "
            "words alone."
        )
    if script_args.max_new_tokens < 1:
        raise MisconfigurationException(
            f"--max_new_tokens {script_args.max_new_tokens} is not accepted: it must be at least 1."
        )
    if script_args.merge and not model_args.use_peft:
        raise MisconfigurationException(
            "--merge needs an adapter, and --use_peft False trains the model's own weights."
        )
    for bits in ("4", "8"):
        if getattr(model_args, flag := f"load_in_{bits}bit"):
            if model is None:
                raise MisconfigurationException(f"--{flag} is for a pretrained model: give --model_name_or_path.")
            if not model_args.use_peft:
                raise MisconfigurationException(
                    f"--{flag} freezes the model's weights, so an adapter is needed: leave out --use_peft False."
                )
    require_folder_or_name("model_name_or_path", model, "config.json, tokenizer and weights")
    require_dataset(data)


def settle(model_args: Any, training_args: Any, typed: Any) -> None:
    """Sets defaults for missing flags: precision by the device, layers and order by the other flags.

    Args:
        typed: the values of the flags before TRL fills in its own defaults.
    """
    if typed.bf16 is None and not training_args.fp16:
        training_args.bf16 = _computes_in_bf16(training_args.decision.type)
    if model_args.dtype is None:  # weights that learn stay whole; frozen ones take half of the memory
        model_args.dtype = "bfloat16" if model_args.use_peft and training_args.bf16 else "float32"
    if model_args.use_peft and model_args.lora_target_modules is None:
        model_args.lora_target_modules = "all-linear"
    if training_args.packing and training_args.train_sampling_strategy == "bucket_by_length":
        training_args.train_sampling_strategy = "random"  # packed rows are of about one length


def _computes_in_bf16(kind: str) -> bool:
    """Returns True for a GPU with bfloat16; a CPU has it too, and most CPUs are slower with it."""
    return kind != "cpu" and "bf16" in ACCELERATORS[kind].precisions(gather_facts())
