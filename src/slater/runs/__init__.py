"""A run on disk, without JAX: its record, folder, metrics and result."""
