"""Evaluation and prediction: batches through the model without gradients, and the metrics of what comes out."""
