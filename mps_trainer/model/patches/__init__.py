"""Changes to a model for the time of a run; each states its gain."""
