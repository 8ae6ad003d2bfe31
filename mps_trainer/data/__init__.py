"""Makes the batches of a dataset in host memory; `BatchTransfer` in `transfer.py` moves them to the device."""
