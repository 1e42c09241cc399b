"""Offline datasets: one in-memory form, one reader per format, checks, a coverage report."""

from slater.data.checks import check
from slater.data.dataset import Dataset, UnorderedTransitions
from slater.data.episodes import Episodes
from slater.data.files import convert, inspect, load, open_dataset, save
from slater.data.findings import Finding, Report
from slater.data.formats.base import ReadOptions
from slater.data.metadata import Metadata
from slater.data.samples import sample
from slater.data.statistics import Statistics
from slater.data.store import StoredDataset

__all__ = [
    "Dataset",
    "Episodes",
    "Finding",
    "Metadata",
    "ReadOptions",
    "Report",
    "Statistics",
    "StoredDataset",
    "UnorderedTransitions",
    "check",
    "convert",
    "inspect",
    "load",
    "open_dataset",
    "sample",
    "save",
]
