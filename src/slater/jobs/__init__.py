"""Many cells of work at once: processes and Ray."""
