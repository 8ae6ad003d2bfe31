"""Measures this Trainer against others with the same model and data: `python -m benchmarks`."""
