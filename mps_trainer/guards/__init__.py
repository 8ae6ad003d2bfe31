"""Keeps a run alive, or ends it with its work saved, when the machine or the data fail."""
