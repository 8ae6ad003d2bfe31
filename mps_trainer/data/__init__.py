"""From a dataset to batches on the device."""
