"""The script's arguments: those of TRL's own `trl sft`, and what the embedded chats change about training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from mps_trainer import MisconfigurationException
from mps_trainer.refusal import sentence
from mps_trainer.scripts.loading import require_dataset, require_folder_or_name, require_packages

NAME = "run_sft.py"
DEFAULTS = {"use_peft": True, "save_strategy": "epoch", "save_total_limit": 1}
# For the tiny model, whose weights are random: embeddings and head know no word yet, so they are trained as well.
EMBEDDED_DEFAULTS = {
    "learning_rate": 5e-3,
    "num_train_epochs": 20.0,
    "per_device_train_batch_size": 8,
    "logging_steps": 50,
    "gradient_checkpointing": False,
    "bf16": False,
    "assistant_only_loss": True,
    "lora_target_modules": ["all-linear"],
    "lora_modules_to_save": ["embed_tokens", "lm_head"],
}


def parse(argv: list[str]) -> tuple[Any, Any, Any]:
    """Returns TRL's ScriptArguments with three more fields, its ModelConfig and its SFTConfig.

    `--config FILE` names a YAML file of flags, as with TRL.

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
            default=None, metadata={"help": "The question that the model answers at the end. [the first held back]"}
        )
        max_new_tokens: int = field(default=40, metadata={"help": "Tokens of its answer, at most."})

    class Parser(TrlParser):
        def error(self, message: str) -> NoReturn:
            raise MisconfigurationException(f"{message.rstrip('.')}. `{NAME} --help` lists the flags.")

    about = "Fine-tune a language model on chats with TRL's SFTTrainer, by LoRA."
    parser = Parser((ChatArguments, ModelConfig, SFTConfig), prog=NAME, description=about, allow_abbrev=False)
    parser.set_defaults(**DEFAULTS)
    try:
        model = Parser((ModelConfig,), prog=NAME, add_help=False, allow_abbrev=False)
        if model.parse_args_and_config(argv, return_remaining_strings=True)[0].model_name_or_path is None:
            parser.set_defaults(**EMBEDDED_DEFAULTS)
        *parsed, unknown = parser.parse_args_and_config(argv, return_remaining_strings=True)
    except IndexError as error:  # TRL's parser takes the word after --config for its value without looking
        raise MisconfigurationException("--config: expected the name of a YAML file.") from error
    except OSError as error:
        raise MisconfigurationException(f"--config {error.filename} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise MisconfigurationException(sentence(error)) from error
    if unknown:
        parser.error(f"{unknown[0]!r} is no flag, nor the value of one")
    script_args, model_args, training_args = parsed
    check(script_args, model_args)
    return script_args, model_args, training_args


def check(script_args: Any, model_args: Any) -> None:
    """Raises MisconfigurationException for names of data and model that cannot be right or do not fit together."""
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
    require_folder_or_name("model_name_or_path", model, "config.json, tokenizer and weights")
    require_dataset(data)
