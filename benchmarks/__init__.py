"""This Trainer measured against what else trains the same model on the same data: `python -m benchmarks`."""
