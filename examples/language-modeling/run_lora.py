#!/usr/bin/env python
"""Fine-tunes a causal language model on your text with LoRA, which trains small added matrices.

    python run_lora.py --embedded

trains a tiny model on the diary that comes with this script;

    python run_lora.py --model_name_or_path HuggingFaceTB/SmolLM2-135M --train_file notes.txt --output_dir OUT

a pretrained one on a file. It picks the best device. `--help` lists every flag.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from lora_arguments import NAME, DataArguments, ModelArguments, parse
from lora_data import Blocks, load_blocks
from lora_model import add_adapter, context, load_model, load_tokenizer, require_fitting

from mps_trainer import MisconfigurationException, TrainingArguments
from mps_trainer.distributed import Processes
from mps_trainer.scripts import run, set_up_logging
from mps_trainer.scripts.loading import require_folder_or_name
from mps_trainer.scripts.reach import go_offline_if_unreachable


def main(argv: list[str] | None = None) -> int:
    """Runs the script and returns the exit status of `mps_trainer.scripts.run`."""
    return run(NAME, lambda: parse(sys.argv[1:] if argv is None else argv), prepare, do)


@dataclass(frozen=True)
class Job:
    """A Trainer, its data and their name, the prompt and length of the sample, and the checkpoint to resume from."""

    trainer: Any
    tokenizer: Any
    blocks: Blocks
    source: str
    prompt: list[int]
    sample_tokens: int
    merge: bool
    checkpoint: str | None


def prepare(model_args: ModelArguments, data_args: DataArguments, training_args: TrainingArguments) -> Job:
    """Loads everything that training needs, and refuses what cannot be trained."""
    if find_spec("peft") is None:
        raise MisconfigurationException(
            f"{NAME} needs PEFT, which is not installed. Install it: pip install 'mps_trainer[peft]'."
        )
    processes = Processes.of(training_args)  # first of all: a device that cannot be had is known in seconds
    from mps_trainer.checkpoints.folders import checkpoint_to_resume

    checkpoint = processes.first_does(
        lambda: checkpoint_to_resume(training_args.resume_from_checkpoint, training_args.output_dir)
    )
    name = model_args.model_name_or_path
    require_folder_or_name("model_name_or_path", name, "config.json, tokenizer and weights")
    if name is not None and not os.path.isdir(name):
        go_offline_if_unreachable()
    set_up_logging(training_args)
    from transformers import set_seed

    set_seed(training_args.seed)  # before the model: adapters begin with random weights
    tokenizer = load_tokenizer(model_args, data_args)
    base = load_model(model_args, tokenizer, training_args)
    blocks = load_blocks(data_args, tokenizer, context(base))
    prompt = prompt_ids(data_args, tokenizer, blocks, context(base))
    require_fitting(base, blocks, prompt)
    model = add_adapter(base, model_args)
    trainer = make_trainer(model, tokenizer, blocks, training_args)
    source = os.path.basename(str(data_args.train_file))
    return Job(trainer, tokenizer, blocks, source, prompt, data_args.sample_tokens, model_args.merge, checkpoint)


def do(job: Job) -> None:
    trainer = job.trainer
    before = perplexity(trainer.evaluate())
    result = trainer.train(resume_from_checkpoint=job.checkpoint)
    trainer.save_model()  # the adapter alone
    metrics = trainer.evaluate()
    metrics |= {"perplexity_before": before, "perplexity": perplexity(metrics), "eval_samples": len(job.blocks.held)}
    train_metrics = {**result.metrics, "train_samples": len(job.blocks.train)}
    for kind, values in (("train", train_metrics), ("eval", metrics)):
        trainer.log_metrics(kind, values)
        trainer.save_metrics(kind, values)
    trainer.save_state()
    write_card = trainer.push_to_hub if trainer.args.push_to_hub else trainer.create_model_card
    write_card(tasks="text-generation", dataset=job.source)
    if not trainer.is_world_process_zero():
        return
    print(f"Perplexity on text that was held back: {before:.2f} before, {metrics['perplexity']:.2f} after.")
    print(f"Sample: {sample(job)}")
    if job.merge:
        merge(job)


def make_trainer(model: Any, tokenizer: Any, blocks: Blocks, training_args: TrainingArguments) -> Any:
    from transformers import default_data_collator

    from mps_trainer import Trainer

    return Trainer(
        model=model,
        args=training_args,
        train_dataset=blocks.train,
        eval_dataset=blocks.held,
        processing_class=tokenizer,
        data_collator=default_data_collator,  # all blocks are of one length
    )


def perplexity(metrics: dict[str, float]) -> float:
    """Returns the perplexity, infinite if a float cannot hold it."""
    return math.exp(metrics["eval_loss"]) if metrics["eval_loss"] < 700 else math.inf


def prompt_ids(data_args: DataArguments, tokenizer: Any, blocks: Blocks, longest: int) -> list[int]:
    """Returns the prompt tokens of the sample, shortened at the start if the model cannot take all."""
    ids = tokenizer(data_args.prompt)["input_ids"] if data_args.prompt else blocks.held[0]["input_ids"][:4]
    room = longest - data_args.sample_tokens
    if room < 1:
        raise MisconfigurationException(
            f"--sample_tokens {data_args.sample_tokens} is too much: the model takes {longest} tokens."
        )
    return ids[-room:]


def sample(job: Job) -> str:
    """Returns what the model writes after the prompt, with the likeliest token at each place."""
    import torch

    model = job.trainer.model.eval()
    ids = torch.tensor([job.prompt], device=model.device)
    with torch.no_grad():
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=job.sample_tokens,
            do_sample=False,
            pad_token_id=0,  # one text alone is never padded; without it the library says that it chose one
        )
    return job.tokenizer.decode(written[0], skip_special_tokens=True)


def merge(job: Job) -> None:
    """Writes the model with the adapter in its weights, which loads without PEFT."""
    folder = os.path.join(job.trainer.args.output_dir, "merged")
    job.trainer.model.merge_and_unload().save_pretrained(folder)
    job.tokenizer.save_pretrained(folder)
    print(f"The model with the adapter in its weights is in {folder}.")


if __name__ == "__main__":
    sys.exit(main())
