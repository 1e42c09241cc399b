"""Offline datasets: one in-memory form, one reader per format, checks, a coverage report."""

from slater.data.checks import check
from slater.data.dataset import Batch, Dataset, Metadata
from slater.data.episodes import Episodes
from slater.data.problems import Problem, Report

__all__ = ["Batch", "Dataset", "Episodes", "Metadata", "Problem", "Report", "check"]
