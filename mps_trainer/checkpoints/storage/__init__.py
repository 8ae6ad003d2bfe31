"""Reads and writes files: durable, locked, and without running code from them."""
