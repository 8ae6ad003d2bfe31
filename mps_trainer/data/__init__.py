"""Makes the batches of a dataset, in host memory; `BatchTransfer` moves them to the device."""
