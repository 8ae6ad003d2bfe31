"""Optimizers and their schedules."""
