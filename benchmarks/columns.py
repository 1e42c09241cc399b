"""What are in-sample policies worth, by how their critics value rows?

For every kind of critics, a policy for each multiplier (`slater.deep.ope.in_sample`), cloned from all rows of
a log by their weights and rolled out in the simulator; and the best mixture of them within each limit, by
those rollouts (hindsight, so a little too good, alike for all kinds).

    python -m benchmarks.columns data/ballcircle.hdf5 data/dronerun.hdf5 --limits 10 20 40
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.common import write_record
from slater.data import load
from slater.deep.batches import transitions
from slater.deep.ope.cloning import HELD_ROWS, CloneSettings, clone_many, drawn_rows, one_of
from slater.deep.ope.cohorts import episode_of_rows
from slater.deep.ope.in_sample import InSampleSettings, gains, row_weights
from slater.deep.task import state_task
from slater.envs import rollout
from slater.limits import resolve_limits
from slater.mixing import lp_weights
from slater.threads import use_one_thread

REGRESSED = InSampleSettings()
KINDS = {
    "regressed on what followed": REGRESSED,
    "expectile .7": replace(REGRESSED, expectile=0.7, steps=6_000),
    "expectile .9": replace(REGRESSED, expectile=0.9, steps=6_000),
}
#: rows that train a policy
ROWS = 100_000


def columns(path: Path, limits: list[float], episodes: int, seed: int) -> dict[str, Any]:
    """Of every kind: return and cost of each multiplier's policy, and the best mixtures within the limits."""
    data = load(path)
    task = state_task(data, resolve_limits([str(limits[0])], data.cost_names), 0.99)
    held = np.random.default_rng(seed).random(len(data.episodes)) < 0.1
    trains = ~held[episode_of_rows(data)]
    batch = transitions(data, task)
    obs, actions = jnp.asarray(batch["obs"]), jnp.asarray(batch["actions"])
    env = data.metadata.env_id
    assert env is not None
    found: dict[str, Any] = {}
    for name, kind in KINDS.items():
        began = time.process_time()
        gained = gains(data, task, trains, replace(kind, seed=seed))
        parts: list[list[Any]] = [[], []]
        for rows_of, mask, size in zip(parts, (trains, ~trains), (ROWS, HELD_ROWS), strict=True):
            rows = np.flatnonzero(mask)
            for column in gained.T:
                rows_of.append(drawn_rows(rows, size, seed, row_weights(column[rows], kind.temperature)))
        own = replace(CloneSettings(), seed=seed)
        train, judge = (jnp.asarray(np.stack(rows_of)) for rows_of in parts)
        policies, _ = clone_many(task, obs, actions, train, judge, own)
        seconds = time.process_time() - began
        true = []
        for k in range(len(kind.multipliers)):
            ran = rollout(one_of(policies, k).export(task), env, episodes=episodes, seed=1_000 * (seed + 1))
            true.append([float(ran.returns.mean()), float(ran.cost.mean())])
        values = np.array(true)
        best = {
            f"{limit:g}": (lp_weights(values, np.array([limit])) @ values).round(1).tolist()
            for limit in limits
        }
        found[name] = {
            "processor_seconds": round(seconds, 1),
            "policies": values.round(1).tolist(),
            "best": best,
        }
        print(path.stem, name, found[name], flush=True)
    return found


def main() -> None:
    """Measure the datasets of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--limits", nargs="+", type=float, default=[10.0, 20.0, 40.0])
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-thread", action="store_true")
    options = parser.parse_args()
    if options.one_thread:
        use_one_thread()
    answers = {
        path.stem: columns(path, options.limits, options.episodes, options.seed) for path in options.data
    }
    write_record("columns", options, answers)


if __name__ == "__main__":
    main()
