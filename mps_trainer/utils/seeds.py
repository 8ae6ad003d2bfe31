"""Seeds every random number generator."""

from __future__ import annotations

from transformers.trainer_utils import enable_full_determinism, set_seed


def seed_all(seed: int, full_determinism: bool = False) -> None:
    """Seeds Python, NumPy and torch; with `full_determinism`, also selects deterministic kernels."""
    if full_determinism:
        enable_full_determinism(seed)
    else:
        set_seed(seed)
