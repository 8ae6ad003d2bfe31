"""Evaluates and predicts: runs batches through the model without gradients and computes metrics."""
