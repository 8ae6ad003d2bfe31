"""Arguments that transformers 5 has removed and that still work."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import option


@dataclass(kw_only=True)
class RemovedArguments:
    overwrite_output_dir: bool = option(
        False, "Train from the beginning even if output_dir has checkpoints of an earlier run."
    )
