"""Offline datasets: one in-memory form, one reader per format, checks, a coverage report."""

from slater.data.checks import check
from slater.data.dataset import Batch, Dataset, Metadata
from slater.data.episodes import Episodes
from slater.data.files import convert, inspect, load, open_dataset, save
from slater.data.formats.base import ReadOptions
from slater.data.problems import Problem, Report
from slater.data.statistics import Statistics
from slater.data.store import StoredDataset

__all__ = [
    "Batch",
    "Dataset",
    "Episodes",
    "Metadata",
    "Problem",
    "ReadOptions",
    "Report",
    "Statistics",
    "StoredDataset",
    "check",
    "convert",
    "inspect",
    "load",
    "open_dataset",
    "save",
]
