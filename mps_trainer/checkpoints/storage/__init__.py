"""Files on the disk: durable, locked, and read without running what is in them."""
