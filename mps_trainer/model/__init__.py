"""Prepares the model: number format, patches and wrappers."""
