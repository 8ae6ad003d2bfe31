"""When checkpoints are written, which are kept, and which is best."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import SaveStrategy
from .fields import option


@dataclass
class CheckpointingArguments:
    save_strategy: SaveStrategy | str = option("steps", "When to save: no, steps, epoch or best.")
    save_steps: float = option(500, "Steps between two checkpoints; below 1, a fraction of all steps.", ge=0)
    save_total_limit: int | None = option(None, "Checkpoints to keep; the best one is always kept. [all]", ge=0)
    save_only_model: bool = option(False, "Save weights only; such a checkpoint cannot be resumed exactly.")
    save_on_each_node: bool = option(False, "With several machines, one process of each saves.")
    load_best_model_at_end: bool = option(False, "After training, go back to the weights of the best checkpoint.")
    metric_for_best_model: str | None = option(None, "Metric that decides which is best. [loss]")
    greater_is_better: bool | None = option(None, "Whether more of it is better. [not if its name ends in loss]")
    save_async: bool = option(True, "Write checkpoints while training goes on, where that is safe.")
    save_on_signal: bool = option(True, "On SIGINT and SIGTERM, finish the step and save a checkpoint before ending.")
    enable_jit_checkpoint: bool = option(False, "Save a checkpoint when the process is told to end (SIGTERM).")
    restore_callback_states_from_checkpoint: bool = option(
        False, "On resume, give callbacks the state that the checkpoint has of them."
    )
