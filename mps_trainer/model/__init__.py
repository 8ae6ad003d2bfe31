"""The model: its preparation, its number format, its patches."""
