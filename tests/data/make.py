"""Small real data for tests: a point that walks on a line, with a cost for going far."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slater.data import Dataset, Metadata

#: The starter data, in a folder `shared` beside the repository; tests that use it are skipped without it.
BALL = next(
    (
        found
        for parent in Path(__file__).resolve().parents
        if (found := parent / "shared" / "datasets" / "ballcircle-scripted-600.hdf5").is_file()
    ),
    Path("ballcircle-scripted-600.hdf5"),
)


def walk(
    episodes=6,
    horizon=10,
    seed=0,
    *,
    obs=3,
    act=2,
    discrete=False,
    costs=("cost",),
    falls=True,
    tail=0,
    given_next=True,
    metadata=None,
):
    """Episodes of at most `horizon` steps, some ended by a fall; `tail` rows without an end."""
    rng = np.random.default_rng(seed)
    columns = {name: [] for name in ("observations", "next_observations", "actions", "rewards", "costs")}
    terminals, timeouts = [], []
    for number in range(episodes + (tail > 0)):
        state = rng.normal(size=obs).astype(np.float32)
        length = tail if number == episodes else horizon
        for step in range(length):
            action = rng.integers(3) if discrete else rng.uniform(-1, 1, act).astype(np.float32)
            push = float(action) - 1 if discrete else float(action.sum())
            after = (0.9 * state + 0.3 * push + 0.1 * rng.normal(size=obs)).astype(np.float32)
            fall = falls and number % 3 == 1 and step == horizon // 2 and number < episodes
            columns["observations"].append(state)
            columns["next_observations"].append(after)
            columns["actions"].append(action)
            columns["rewards"].append(float(after[0]))
            columns["costs"].append([float(abs(after[0]) > 0.5 + index) for index in range(len(costs))])
            terminals.append(fall)
            timeouts.append(not fall and step == horizon - 1 and number < episodes)
            state = after
            if fall:
                break
    return Dataset.from_arrays(
        observations=columns["observations"],
        actions=np.asarray(columns["actions"]),
        rewards=columns["rewards"],
        costs=columns["costs"],
        terminals=terminals,
        timeouts=timeouts,
        next_observations=columns["next_observations"] if given_next else None,
        cost_names=costs,
        metadata=metadata or Metadata(),
    )


def same(left, right):
    """Whether two datasets hold the same rows, names and metadata."""
    return (
        left.fingerprint == right.fingerprint
        and left.cost_names == right.cost_names
        and left.metadata == right.metadata
    )


needs_ball = pytest.mark.skipif(not BALL.is_file(), reason="the starter data is not on this machine")


def remembering(discrete=False, seed=0, **options):
    """The walk with the names of three sources and a propensity for every action."""
    data = walk(discrete=discrete, seed=seed, **options)
    rng = np.random.default_rng(seed)
    names = np.array(["careful", "bold – süß", "7"])
    return replace(
        data,
        source=names[rng.integers(3, size=len(data.episodes))],
        propensity=rng.uniform(1e-3, 1, data.size) if discrete else np.exp(rng.normal(0, 40, data.size)),
    )
