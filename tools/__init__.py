"""Programs for the developers of mps_trainer, not installed with the package."""
