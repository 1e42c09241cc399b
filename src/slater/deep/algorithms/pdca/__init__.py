"""PDCA, Algorithm 2."""

from slater.deep.algorithms.pdca.algorithm import PAPER, PDCA, PDCAConfig, PDCAState

__all__ = ["PAPER", "PDCA", "PDCAConfig", "PDCAState"]
