"""Bounds and verdicts: whether a policy keeps its limits, and how sure that is."""
