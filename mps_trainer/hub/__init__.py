"""The model on the hub: its card and its uploads. huggingface_hub and transformers do the work."""
