"""What is run, where its files go, and from which seed."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import option


@dataclass
class RunArguments:
    output_dir: str = option(
        "trainer_output", "Folder for checkpoints, the final model and results. Made when something is written to it."
    )
    overwrite_output_dir: bool = option(
        False, "Train from the beginning even if output_dir holds the checkpoints of an earlier run."
    )
    do_train: bool = option(False, "Train. Read by scripts; the Trainer itself does not look at it.")
    do_eval: bool = option(False, "Evaluate. Set by itself when eval_strategy is not 'no'.")
    do_predict: bool = option(False, "Predict on the test set. Read by scripts.")
    resume_from_checkpoint: str | None = option(
        None, "Checkpoint folder to continue from. Read by scripts, which hand it to Trainer.train()."
    )
    seed: int = option(
        42,
        "Seed of every random number generator, set when the Trainer is made.",
        ge=0,
        le=2**32 - 1,  # numpy's bound
    )
    data_seed: int | None = option(None, "Seed of the order of the examples. [seed]", ge=0, le=2**63 - 1)
    full_determinism: bool = option(False, "Use deterministic algorithms only; slower.")
