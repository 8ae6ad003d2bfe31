#!/usr/bin/env python
"""Fine-tunes a language model on chats with TRL's SFTTrainer, by LoRA, on this package's Trainer.

    python run_sft.py

trains a tiny model on the chats that come with this script;

    python run_sft.py --model_name_or_path HuggingFaceTB/SmolLM2-135M-Instruct --dataset_name trl-lib/Capybara \\
        --output_dir OUT

a pretrained one on a dataset. It picks the best device. `--help` lists every flag: they are those of `trl sft`.
"""

from __future__ import annotations

import mps_trainer.replace_transformers  # noqa: F401  # before TRL is imported

# isort: split

import os
import sys
from dataclasses import dataclass
from typing import Any

from sft_arguments import NAME, parse

from mps_trainer import MisconfigurationException
from mps_trainer.distributed import Processes
from mps_trainer.refusal import sentence
from mps_trainer.scripts import run, set_up_logging
from mps_trainer.scripts.loading import load_splits
from mps_trainer.scripts.reach import go_offline_if_unreachable
from mps_trainer.terminal import on_terminal

INSTEAD = "Give a folder, a name on a hub that can be reached, or neither model nor data for the tiny model."


def main(argv: list[str] | None = None) -> int:
    """Runs the script; returns the exit status, as `mps_trainer.scripts.run` has it."""
    return run(NAME, lambda: parse(sys.argv[1:] if argv is None else argv), prepare, do)


@dataclass(frozen=True)
class Job:
    """A Trainer, the question that its model answers at the end, and the checkpoint to resume from."""

    trainer: Any
    question: str | None
    max_new_tokens: int
    checkpoint: str | None


def prepare(script_args: Any, model_args: Any, training_args: Any) -> Job:
    """Loads everything that training needs, and refuses what cannot be trained."""
    processes = Processes.of(training_args)  # first of all: an unavailable device is known in seconds
    from mps_trainer.checkpoints.folders import checkpoint_to_resume

    checkpoint = processes.first_does(
        lambda: checkpoint_to_resume(training_args.resume_from_checkpoint, training_args.output_dir)
    )
    if any(name and not os.path.exists(name) for name in (model_args.model_name_or_path, script_args.dataset_name)):
        go_offline_if_unreachable()
    set_up_logging(training_args)
    import datasets
    from transformers import set_seed

    if not on_terminal():
        datasets.disable_progress_bars()
    set_seed(training_args.seed)  # before the model: adapters begin with random weights
    train, held = load_chats(script_args, training_args.seed)
    question = script_args.prompt or first_question(held)
    trainer = make_trainer(model_args, training_args, train, held)
    return Job(trainer, question, script_args.max_new_tokens, checkpoint)


def load_chats(script_args: Any, seed: int) -> tuple[Any, Any]:
    """Returns the rows to train on and those to evaluate on, in one of the formats that SFTTrainer takes."""
    if script_args.dataset_name is None:
        from datasets import Dataset
        from sft_chats import chats

        train, held = (Dataset.from_dict({"messages": part}) for part in chats())
        return train, held
    return load_splits(
        script_args.dataset_name,
        script_args.dataset_config,
        script_args.dataset_train_split,
        script_args.dataset_test_split,
        seed,
        INSTEAD,
        script_args.dataset_streaming,
    )


def first_question(rows: Any) -> str | None:
    """Returns what the user says first in the first row; None where rows are no chats."""
    row = next(iter(rows), {})
    messages = row.get("messages") or row.get("prompt")
    if isinstance(messages, str):
        return messages
    chat = [message for message in messages or [] if isinstance(message, dict)]
    said = next((message.get("content") for message in chat if message.get("role") == "user"), None)
    return said if isinstance(said, str) else None


def make_trainer(model_args: Any, training_args: Any, train: Any, held: Any) -> Any:
    """Returns TRL's trainer of the named model, or of the tiny one.

    Raises:
        MisconfigurationException: for a model, data and settings that TRL refuses.
    """
    from trl import SFTTrainer, get_peft_config, get_quantization_config

    model, tokenizer = model_args.model_name_or_path, None
    if model is None:
        from sft_chats import tiny_model, tiny_tokenizer

        tokenizer = tiny_tokenizer()
        model = tiny_model(tokenizer)
    else:
        training_args.model_init_kwargs = {
            "revision": model_args.model_revision,
            "attn_implementation": model_args.attn_implementation,
            "dtype": model_args.dtype,
            **(training_args.model_init_kwargs or {}),
        }
    try:
        return SFTTrainer(
            model=model,
            args=training_args,
            train_dataset=train,
            eval_dataset=held,
            processing_class=tokenizer,
            quantization_config=get_quantization_config(model_args),
            peft_config=get_peft_config(model_args),
        )
    except (ValueError, TypeError, KeyError, ImportError, OSError) as error:
        what = model_args.model_name_or_path or "the tiny model"
        raise MisconfigurationException(f"SFTTrainer cannot train {what} on these chats: {sentence(error)}") from error


def do(job: Job) -> None:
    """Trains, saves, and says what was gained."""
    trainer = job.trainer
    before = trainer.evaluate()["eval_loss"]
    result = trainer.train(resume_from_checkpoint=job.checkpoint)
    trainer.save_model()
    metrics = {**trainer.evaluate(), "eval_loss_before": before}
    for kind, values in (("train", result.metrics), ("eval", metrics)):
        trainer.log_metrics(kind, values)
        trainer.save_metrics(kind, values)
    trainer.save_state()
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    if not trainer.is_world_process_zero():
        return
    print(f"Loss on chats that were held back: {before:.3f} before, {metrics['eval_loss']:.3f} after.")
    if job.question is not None:
        print(f"Question: {job.question}\nAnswer: {answer(job)}")


def answer(job: Job) -> str:
    """Returns what the model answers, taking the likeliest token at each place."""
    import torch

    model, tokenizer = job.trainer.model.eval(), job.trainer.processing_class
    if tokenizer.chat_template is None:
        inputs = tokenizer(job.question, return_tensors="pt")
    else:
        chat = [{"role": "user", "content": job.question}]
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    inputs = inputs.to(model.device)
    with torch.no_grad():
        written = model.generate(
            **inputs, max_new_tokens=job.max_new_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
    return tokenizer.decode(written[0][inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


if __name__ == "__main__":
    sys.exit(main())
