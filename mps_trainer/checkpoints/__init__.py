"""A run's files to resume from: written whole or not at all, chosen, read without running code."""
