"""How often `slater certify` passes wrongly with the defaults of the command line, end to end.

    python -m tests.certify.coverage --repeats 400

Every case has its limit just below the true mean, so that every pass is wrong; 95% is the default. Two runs
are judged, whose logs have steps that cost at most 1 and at most 600: without that nothing could pass. The
numbers are in docs/results-verdicts.md; `test_properties.py` has a few repeats of each, and of cases that
hypothesis draws.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slater.certify.bounds import share_lower, share_upper
from slater.cli import main
from slater.data import Dataset, save

from .worlds import BLOW, T, log_of, trained

KINDS = ("environment", "until decided", "own episodes", "cut pieces", "copies", "propensities")


@dataclass(frozen=True)
class Case:
    """Evidence of a kind on episodes whose first step costs `large` by `chance`, others 1 by `rate`."""

    kind: str
    chance: float = 1 / 75
    large: float = 600.0
    rate: float = 0.0

    @property
    def mean(self) -> float:
        """Expected cost of an episode."""
        return self.chance * self.large + self.rate * (T - 1)

    def _log(self, seed: int, episodes: int) -> Dataset:
        rng = np.random.default_rng([5, seed])
        costs = (rng.random((episodes, T)) < self.rate).astype(float)
        costs[:, 0] = self.large * (rng.random(episodes) < self.chance)
        return log_of(costs, 1000 + seed)

    def words(self, seed: int, place: Path) -> list[object]:
        """The options of `slater certify` after the policy; evidence is written to `place`."""
        limit = ["--limit", 0.999 * self.mean]
        env = f"{BLOW}?chance={self.chance}&large={self.large}&rate={self.rate}"
        if self.kind == "environment":
            return ["--env", env, "--seed", seed, *limit]
        if self.kind == "until decided":
            return ["--env", env, "--seed", seed, "--until-decided", "--at-most", 60, *limit]
        if self.kind == "copies":  # eight episodes thirty times over
            rows = {k: np.concatenate([v] * 30) for k, v in self._log(seed, 8).rows().items()}
        else:
            rows = self._log(seed, 150).rows()
        if self.kind == "cut pieces":  # of two to ten steps
            lengths = np.random.default_rng([6, seed]).integers(2, T + 1, 150)
            step = np.arange(150 * T) % T
            keep = step < np.repeat(lengths, T)
            rows = {k: v[keep] for k, v in rows.items()}
            rows["timeouts"] = (step == np.repeat(lengths, T) - 1)[keep]
        del rows["next_known"]
        file = place / f"evidence{seed}.npz"
        # nothing but the rows: the horizon is what the policy knows
        save(Dataset.from_arrays(**rows, metadata=self._log(0, 1).metadata), file, overwrite=True)
        return ["--data" if self.kind == "propensities" else "--own", file, *limit]

    def code(self, runs: Mapping[bool, Path], seed: int, place: Path) -> int:
        """0 for a pass, which is wrong; 1 for a fail; 4 for an abstention."""
        run = runs[self.large > 1]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return main(
                ["certify", str(run), *map(str, self.words(seed, place)), "--out", str(place / "out")]
            )


#: rare large costs, and even ones
CASES = [case for kind in KINDS for case in (Case(kind), Case(kind, 0.5, 1.0, 0.5))]


def trained_both(place: Path) -> dict[bool, Path]:
    """Runs whose logs have steps that cost at most 600 (True) and at most 1."""
    even = log_of((np.random.default_rng(9).random((100, T)) < 0.5).astype(float))
    return {True: trained(place / "rare"), False: trained(place / "even", log=even)}


def drawn(seed: int) -> Case:
    """Another case for every seed."""
    rng = np.random.default_rng([7, seed])
    large = float(rng.choice([1.0, 60.0, 600.0]))
    chance = float(np.exp(rng.uniform(np.log(1 / 200), np.log(1 / 2))))
    return Case(str(rng.choice(KINDS)), chance, large, float(rng.uniform(0.05, 0.8)))


def line(name: str, codes: list[int]) -> str:
    """A row of the table: false passes with their exact 95% interval, right fails, abstentions."""
    n, by = len(codes), Counter(codes)
    assert set(by) <= {0, 1, 4}, by
    low, high = share_lower(by[0], n, 0.025), share_upper(by[0], n, 0.025)
    return f"| {name} | {n} | {by[0]} | {by[0] / n:.1%} ({low:.1%} to {high:.1%}) | {by[1]} | {by[4]} |"


def command() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=400)
    repeats = parser.parse_args().repeats
    print("| evidence | certificates | false passes | rate (95% interval) | fails, rightly | abstentions |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        runs = trained_both(place)
        for case in CASES:
            name = f"{case.kind}, {'rare' if case.large > 1 else 'even'}"
            print(line(name, [case.code(runs, seed, place) for seed in range(repeats)]), flush=True)
        codes = [drawn(seed).code(runs, seed, place) for seed in range(repeats)]
        print(line("drawn, another case each time", codes))


if __name__ == "__main__":
    command()
