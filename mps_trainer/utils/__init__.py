"""Helpers that know nothing of training."""
