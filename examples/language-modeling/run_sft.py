#!/usr/bin/env python
"""Fine-tunes a language model on chats with TRL's SFTTrainer, by LoRA, on this package's Trainer.

    python run_sft.py

trains a tiny model on the chats that come with this script;

    python run_sft.py --model_name_or_path Qwen/Qwen3-0.6B --dataset_name chats.jsonl --output_dir OUT

a pretrained one on chats of your own. It picks the best device, and its defaults are for a Mac with 16 GB. `--help`
lists every flag: they are those of `trl sft`, and `--merge`, `--prompt` and `--max_new_tokens`.
"""

from __future__ import annotations

import mps_trainer.replace_transformers  # noqa: F401  # before TRL is imported

# isort: split

import os
import sys
from dataclasses import dataclass
from typing import Any

from sft_arguments import NAME, parse
from sft_data import first_question, is_chat, load_rows
from sft_model import answer, make_trainer, merge, require_quantizer

from mps_trainer.distributed import Processes
from mps_trainer.scripts import run, set_up_logging
from mps_trainer.scripts.reach import go_offline_if_unreachable
from mps_trainer.utils.terminal import on_terminal


def main(argv: list[str] | None = None) -> int:
    """Runs the script; returns the exit status, as `mps_trainer.scripts.run` has it."""
    return run(NAME, lambda: parse(sys.argv[1:] if argv is None else argv), prepare, do)


@dataclass(frozen=True)
class Job:
    """A Trainer, the question that its model answers before and after, and the checkpoint to resume from."""

    trainer: Any
    model_args: Any
    chats: bool  # rather than text
    question: str | None
    max_new_tokens: int
    merge: bool
    checkpoint: str | None

    def answer(self) -> str | None:
        """Returns what the model answers now; None without a question."""
        if self.question is None:
            return None
        return answer(self.trainer, self.question, self.max_new_tokens, self.chats)


def prepare(script_args: Any, model_args: Any, training_args: Any) -> Job:
    """Loads everything that training needs, and refuses what cannot be trained."""
    require_quantizer(model_args)
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
    train, held = load_rows(script_args, training_args.dataset_text_field, training_args.seed)
    question = script_args.prompt or first_question(held)
    trainer = make_trainer(model_args, training_args, train, held)
    return Job(
        trainer, model_args, is_chat(train), question, script_args.max_new_tokens, script_args.merge, checkpoint
    )


def do(job: Job) -> None:
    """Trains, saves, and says what was gained."""
    trainer = job.trainer
    before = trainer.evaluate()["eval_loss"]
    answer_before = job.answer()
    result = trainer.train(resume_from_checkpoint=job.checkpoint)
    trainer.save_model()
    metrics = {**trainer.evaluate(), "eval_loss_before": before}
    for kind, values in (("train", result.metrics), ("eval", metrics)):
        trainer.log_metrics(kind, values)
        trainer.save_metrics(kind, values)
    trainer.save_state()
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    answer_after = job.answer()
    if not trainer.is_world_process_zero():
        return
    print(f"Loss on rows that were held back: {before:.3f} before, {metrics['eval_loss']:.3f} after.")
    if job.question is not None:
        print(f"Question: {job.question}\nAnswer before: {answer_before}\nAnswer after: {answer_after}")
    if job.merge:
        print(f"The model with the adapter in its weights is in {merge(trainer, job.model_args)}.")


if __name__ == "__main__":
    sys.exit(main())
