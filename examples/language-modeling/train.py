#!/usr/bin/env python
"""Fine-tunes a language model with LoRA and TRL: python train.py --dataset_name chats.jsonl --output_dir OUT"""

import mps_trainer.replace_transformers  # noqa: F401, I001  # before TRL, which then trains on mps_trainer

import sys
from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, set_seed

from mps_trainer import MisconfigurationException, load_mlx_model
from mps_trainer.scripts import checkpoint_to_resume, one_line_errors, one_line_import_errors
from mps_trainer.scripts.flags import OneLineParser
from mps_trainer.scripts.loading import errors_about_model
from mps_trainer.scripts.tables import load_splits, require_columns, sample

with one_line_import_errors("train.py"):
    from peft import LoraConfig, PeftModel
    from trl import SFTConfig, SFTTrainer


@dataclass
class Arguments:
    model_name_or_path: str = "Qwen/Qwen3-0.6B"  # on the hub, or a folder; also MLX's, as mlx-community/Qwen3-4B-4bit
    dataset_name: str = "trl-lib/Capybara"  # on the hub, a folder, or a file: rows with `messages`, or with `text`
    dataset_config_name: str | None = None  # for a dataset with several configurations
    text_column_name: str | None = None  # the column with chats or texts, if it has another name
    max_train_samples: int | None = None  # train on so many rows, drawn at random
    max_eval_samples: int | None = 100  # so many are evaluated every 50 steps
    lora_r: int = 16  # the rank of the adapters: small matrices that learn in place of the weights
    load_in_4bit: bool = False  # the frozen weights; needs bitsandbytes
    merge: bool = False  # also write the model with the adapters in its weights, to OUTPUT_DIR/merged


# For a Mac with 16 GB: two chats at a time, eight for an update, padded to few lengths.
DEFAULTS = {"learning_rate": 2e-4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
DEFAULTS |= {"train_sampling_strategy": "bucket_by_length", "per_device_eval_batch_size": 2}
# Few chats are soon learned by heart: the adapters with the lowest loss on held-back chats are kept.
DEFAULTS |= {"eval_strategy": "steps", "eval_steps": 50, "save_steps": 50, "save_total_limit": 2}
DEFAULTS |= {"load_best_model_at_end": True}
MANY = 10_000  # chats in all epochs, or 1,250 steps


@one_line_errors("train.py")
def main() -> None:
    script, args = OneLineParser((Arguments, SFTConfig), description=__doc__).parse(sys.argv[1:], **DEFAULTS)
    train, held = load_splits(script.dataset_name, script.dataset_config_name)
    if (column := script.text_column_name) is not None:
        require_columns(train, "text_column_name", column)
        require_columns(held, "text_column_name", column)
        name = "messages" if isinstance(train[0][column], list) else args.dataset_text_field
        train, held = (rows.select_columns(column).rename_columns({column: name}) for rows in (train, held))
    known = {"messages", "conversations", "prompt", "input_ids", args.dataset_text_field}  # TRL reads these
    if not known.intersection(train.column_names):
        raise MisconfigurationException(
            f"{script.dataset_name} has no column messages or {args.dataset_text_field}; its columns are "
            f"{', '.join(train.column_names)}. Name the one with chats or texts: --text_column_name NAME."
        )
    train, held = sample(train, script.max_train_samples), sample(held, script.max_eval_samples)
    if args.max_steps <= 0 and args.num_train_epochs * len(train) > MANY and args.should_log:
        print(
            f"{args.num_train_epochs:g} epochs of {len(train):,} chats take long. For a first try add "
            "--max_train_samples 500 --num_train_epochs 1."
        )
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    with errors_about_model(script.model_name_or_path):
        config = AutoConfig.from_pretrained(script.model_name_or_path)
    is_mlx = isinstance(getattr(config, "quantization", None), dict)  # MLX's name of its settings
    if is_mlx and (script.load_in_4bit or script.merge):
        raise MisconfigurationException(
            f"{script.model_name_or_path} is in MLX's format, whose weights are quantized already and stay so: leave "
            "out --load_in_4bit and --merge. `mps-trainer export` writes the adapters for mlx-lm, and `mlx_lm.fuse` "
            "merges them."
        )
    bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    with errors_about_model(script.model_name_or_path):
        tokenizer = AutoTokenizer.from_pretrained(script.model_name_or_path)
        if is_mlx:
            model = load_mlx_model(script.model_name_or_path, dtype=dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(
                script.model_name_or_path, dtype=dtype, quantization_config=bits if script.load_in_4bit else None
            )
    set_seed(args.seed)  # the adapters begin with random weights
    lora = LoraConfig(r=script.lora_r, lora_alpha=2 * script.lora_r, target_modules="all-linear")
    trainer = SFTTrainer(model, args, None, train, held, processing_class=tokenizer, peft_config=lora)
    trainer.train(resume_from_checkpoint=checkpoint_to_resume(args))
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())
    if script.merge:
        # adapters cannot be merged into weights in 4 bits without a loss
        whole = AutoModelForCausalLM.from_pretrained(script.model_name_or_path, dtype=dtype)
        PeftModel.from_pretrained(whole, args.output_dir).merge_and_unload().save_pretrained(
            f"{args.output_dir}/merged"
        )
        tokenizer.save_pretrained(f"{args.output_dir}/merged")


if __name__ == "__main__":
    sys.exit(main())
