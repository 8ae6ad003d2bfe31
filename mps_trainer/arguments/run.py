"""The run: its phases, files and seed."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import option


@dataclass
class RunArguments:
    output_dir: str = option(
        "trainer_output", "Folder for checkpoints, the final model and results. It is created on the first write."
    )
    do_train: bool = option(False, "Train. For scripts; the Trainer does not read it.")
    do_eval: bool = option(False, "Evaluate. Set automatically when eval_strategy is not 'no'.")
    do_predict: bool = option(False, "Predict on the test set. For scripts; the Trainer does not read it.")
    resume_from_checkpoint: str | None = option(
        None, "Checkpoint folder to resume from. For scripts, which pass it to Trainer.train()."
    )
    seed: int = option(
        42,
        "Seed of all random number generators, set when the Trainer is built.",
        ge=0,
        le=2**32 - 1,  # numpy's bound
    )
    data_seed: int | None = option(None, "Seed of the order of the examples. [seed]", ge=0, le=2**63 - 1)
    full_determinism: bool = option(False, "Use only deterministic algorithms; slower.")
