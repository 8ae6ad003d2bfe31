"""The parts of a training batch whose examples are of like length. Imports nothing."""

from __future__ import annotations


def parts_of_batch(batch_size: int, accumulation: int) -> int:
    """How many parts, each of examples of like length, a training batch is to have.

    Two, unless several batches make an update anyway, or a part would have fewer than 8 examples. An update whose
    examples all have one length follows what is peculiar to that length, and training in which every update does
    learns less, or at a high learning rate nothing: docs/data.md has what was measured.
    """
    return 2 if accumulation == 1 and batch_size >= 16 and batch_size % 2 == 0 else 1
