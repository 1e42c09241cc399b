"""Figures that others published for the DSRL Bullet data, with where each comes from (published_bullet.csv).

They are DSRL-normalised rewards and costs divided by their limit, means over seeds and over the limits that
stand beside them. They were measured by other people's code on DSRL's data: a row of ours from other data
is no repetition of them, and every table that shows both says so.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: where a figure comes from, in words
STATUS = {
    "paper": "printed in the PDCA paper",
    "blog": "a DSRL row reprinted in a public post",
    "pdf": "supplement of the CAPS authors",
    "fig": "table image of the FISOR paper",
    "text": "text of the PLS paper",
    "trac": "table image in TraC's repository; maybe chosen in the simulator",
}


@dataclass(frozen=True)
class Published:
    """One figure: `limits` as in the file ("10/20/40": mean over these), reward and cost normalised."""

    algorithm: str
    limits: str
    task: str
    reward: float
    cost: float
    status: str


@cache
def published() -> tuple[Published, ...]:
    """Every published figure."""
    text = (Path(__file__).parent / "published_bullet.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Published(
            row["algo"], row["limits"], row["task"], float(row["reward"]), float(row["cost"]), row["status"]
        )
        for row in rows
    )


def published_for(algorithm: str, task: str) -> Published | None:
    """The figure of one of our algorithms (as `pdca:paper`) on a task, mean over 10, 20 and 40."""
    from slater.deep import algorithms, find

    name, _, preset = algorithm.partition(":")
    if name not in algorithms():  # a row of a package that is no longer installed
        return None
    wanted = (find(name, preset or None).published_as, task, "10/20/40")
    return next((row for row in published() if (row.algorithm, row.task, row.limits) == wanted), None)
