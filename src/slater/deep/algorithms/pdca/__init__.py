"""PDCA: Algorithm 2 as printed (`paper`), and what we recommend (`default`)."""

from slater.deep.algorithms.pdca.config import PDCAConfig
from slater.deep.algorithms.pdca.default import PDCA, PDCAState
from slater.deep.algorithms.pdca.paper import PaperConfig, PaperPDCA

__all__ = ["PDCA", "PDCAConfig", "PDCAState", "PaperConfig", "PaperPDCA"]
