"""Handles failures of the machine or the data: continues the run, or saves and ends it."""
