"""Programs for those who work on mps_trainer. None of them is installed with the package."""
