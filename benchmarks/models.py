"""How right are models of a log about the policies that made it, by how they are fitted?

The sources of a behaviour file are rolled out in one network, and what it says of each is compared with what
the source's episodes in the log did. No clone takes part, so that all error is the model's.

    python -m benchmarks.models data/carcircle.hdf5 20 data/antrun.hdf5 20

Errors are root mean squares over sources: of costs as shares of max(limit, cost), of returns as shares of the
largest. `none` is without the model's noise.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.common import write_record
from slater.collect.behaviour import load_behaviour
from slater.collect.benchmark import behaviour_path
from slater.data import load
from slater.deep.nets.mlp import MLP
from slater.deep.nets.policy import Gaussian
from slater.deep.ope.cloning import CloneSettings
from slater.deep.ope.cohorts import find_cohorts, outcomes
from slater.deep.ope.ensemble import EnsembleSettings, careful, fit_ensemble, thorough_ensemble
from slater.deep.task import Task, state_task
from slater.limits import resolve_limits
from slater.policy import GaussianPolicy
from slater.threads import use_one_thread

ROLLOUTS = 64
#: standard deviation that sources are recorded with, beside their own
NOISE = 0.1

ONE = EnsembleSettings(copies=1)
#: one network each, on all episodes that are not held out
FITS = {
    "quick": replace(ONE, left_out=0.0),
    "three times as long": replace(ONE, left_out=0.0, steps=30_000),
    "and 2 x 256 units": replace(ONE, left_out=0.0, steps=30_000, hidden=(256, 256)),
    "thorough (3 x 256, normalised, SiLU)": replace(thorough_ensemble(ONE), copies=1, left_out=0.0),
}


class Source(Gaussian):
    """A policy of a behaviour file as it was recorded, on the task's observations."""

    noise: float = eqx.field(static=True, default=NOISE)

    def _moments(self, obs: Array) -> tuple[Array, Array]:
        mean, log_std = super()._moments(obs)
        return mean, 0.5 * jnp.log(jnp.exp(2.0 * log_std) + self.noise**2)


def source(policy: GaussianPolicy, task: Task) -> Source:
    """`policy`, which takes raw observations, as a network on normalised ones."""
    sizes = [len(policy.weights[0]), *(weight.shape[1] for weight in policy.weights)]
    first = policy.weights[0] * np.asarray(task.obs_std)[:, None]
    shift = policy.biases[0] + np.asarray(task.obs_mean) @ policy.weights[0]
    own = eqx.tree_at(
        lambda mlp: (mlp.weights, mlp.biases), MLP(sizes, jax.random.key(0)),
        (tuple(map(jnp.asarray, (first, *policy.weights[1:]))),
         tuple(map(jnp.asarray, (shift, *policy.biases[1:])))),
    )  # fmt: skip
    return Source(own, policy.log_std_range)


def errors(path: Path, limit: str) -> dict[str, Any]:
    """Of every fit: seconds, and errors of costs and returns with the noise and without it."""
    data = load(path)
    task = state_task(data, resolve_limits([limit], data.cost_names), 0.99)
    cohorts = find_cohorts(data, task, CloneSettings())
    trained: dict[str, Any] = {
        one.name: one.policy for one in load_behaviour(behaviour_path(path.stem)).sources
    }
    sources = [source(trained[name], task) for name in cohorts.names]
    logged, _ = cohorts.means(outcomes(data, task))
    size = np.array([np.abs(logged[:, 0]).max()]), np.maximum(logged[:, 1], task.tau[0])
    found: dict[str, Any] = {}
    for name, settings in FITS.items():
        began = time.process_time()
        model = fit_ensemble(data.subset(~cohorts.held), task, settings)
        model.dynamics.weights[0].block_until_ready()
        row: dict[str, Any] = {"processor_seconds": round(time.process_time() - began, 1)}
        for label, noise in (("noise", 1.0), ("none", 0.0)):
            values = careful(task, model, data.initial_observations, ROLLOUTS, noise)
            said = np.array([values(own, jax.random.key(k)).mean[0] for k, own in enumerate(sources)])
            apart = [(said[:, k] - logged[:, k]) / size[k] for k in (0, 1)]
            row[label] = dict(
                zip(("return", "cost"), (round(math.sqrt(np.mean(x**2)), 3) for x in apart), strict=True)
            )
        found[name] = row
        print(path.stem, name, row, flush=True)
    return found


def main() -> None:
    """Measure the datasets and limits of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pairs", nargs="+", help="dataset and limit, dataset and limit, ...")
    parser.add_argument("--one-thread", action="store_true")
    options = parser.parse_args()
    if options.one_thread:
        use_one_thread()
    pairs = zip(options.pairs[::2], options.pairs[1::2], strict=True)
    write_record("models", options, {Path(path).stem: errors(Path(path), limit) for path, limit in pairs})


if __name__ == "__main__":
    main()
