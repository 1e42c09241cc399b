"""Slater: offline constrained reinforcement learning.

Policies from logged data that maximise reward while keeping every expected cost under its limit.
"""

from slater.errors import InputError

__all__ = ["InputError", "__version__"]
__version__ = "0.1.0"
