"""A log of one of the domains: episodes run by operators, each with a rule of its own and an unsteady hand.

    python examples/domains/record.py charging charging.hdf5 --episodes 400
    python examples/domains/record.py grid grid.hdf5 --episodes 400

The log is bare, as operators' logs are: it does not say who ran an episode, nor how likely an action was.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import numpy as np

from slater.data import Dataset, Metadata, save

WORLDS = {"charging": "Site", "grid": "Grid"}
COLUMNS = ("observations", "actions", "rewards", "costs", "terminals", "timeouts", "next_observations")


def record(domain: str, episodes: int, seed: int = 0) -> Dataset:
    """So many episodes, one after the other, each by another operator."""
    module = importlib.import_module(domain)
    world, rng = getattr(module, WORLDS[domain])(), np.random.default_rng(seed)
    columns: dict[str, list[object]] = {name: [] for name in COLUMNS}
    for _ in range(episodes):
        operator = module.Operator(rng)
        seen, _ = world.reset(seed=int(rng.integers(2**31)))
        terminated = truncated = False
        while not (terminated or truncated):
            action = operator.act(seen)
            after, reward, terminated, truncated, info = world.step(action)
            costs = list(info["costs"].values())
            row = (seen, action, reward, costs, terminated, truncated and not terminated, after)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
            seen = after
    space = world.action_space
    metadata = Metadata(
        env_id=f"{domain}:{WORLDS[domain]}", horizon=module.HORIZON,
        action_low=tuple(map(float, space.low)), action_high=tuple(map(float, space.high)),
    )  # fmt: skip
    arrays = {name: np.array(column) for name, column in columns.items()}
    return Dataset.from_arrays(**arrays, cost_names=world.cost_names, metadata=metadata)


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("domain", choices=WORLDS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    save(record(options.domain, options.episodes, options.seed), options.out)


if __name__ == "__main__":
    main()
