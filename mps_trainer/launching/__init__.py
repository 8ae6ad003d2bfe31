"""Reads launch settings and starts a script with them. It is not part of training."""
