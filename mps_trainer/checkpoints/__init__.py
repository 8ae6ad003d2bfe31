"""Writes, selects and reads the checkpoints of a run: atomic writes, and no code execution on reading."""
