"""Searches hyper-parameters with transformers' back ends."""
