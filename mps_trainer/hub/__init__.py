"""Writes the model card and uploads the model, with huggingface_hub and transformers."""
