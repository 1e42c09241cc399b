"""A small log in which every kind of column and of cost is, and episodes of its model."""

from __future__ import annotations

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from slater.data import Dataset, Metadata
from slater.deep.batches import transitions
from slater.deep.log_model.dynamics import Dynamics, DynamicsSettings, fit_dynamics
from slater.deep.task import Task, state_task
from slater.limits import resolve_limits

HORIZON, FLAG, HAZARD = 25, 0.03, 0.02
SETTINGS = DynamicsSettings(
    networks=2, components=2, steps=(3_000, 3_000), batch_size=64, learning_rate=2e-3, hidden=(32, 32),
    outcome_hidden=(32,),
)  # fmt: skip


def mixed_log(episodes: int = 160, seed: int = 0) -> Dataset:
    """Columns: a flag that is up in 3% of the steps; x' = .9 x + .3 a, without noise; noise. A hazard of 2% a
    step ends episodes. Costs: acting under the flag, 5; rare damage of lognormal size where a > 0.
    """
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {k: [] for k in ("obs", "act", "rew", "cost", "next", "end", "out")}
    for _ in range(episodes):
        s = np.array([float(rng.random() < FLAG), rng.normal() * 0.3, rng.normal()])
        for t in range(HORIZON):
            a = rng.uniform(-1, 1, 1)
            after = np.array([float(rng.random() < FLAG), 0.9 * s[1] + 0.3 * a[0], rng.normal()])
            hit = (a[0] > 0) * (rng.random() < 0.1) * np.exp(rng.normal())
            end = rng.random() < HAZARD
            values = (s, a, after[1], [5.0 * (s[0] > 0 and a[0] > 0), hit], after, end, t == HORIZON - 1)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
            s = after
            if end:
                break
    column = {name: np.array(values) for name, values in rows.items()}
    return Dataset.from_arrays(
        observations=column["obs"], actions=column["act"], rewards=column["rew"], costs=column["cost"],
        terminals=column["end"], timeouts=column["out"] & ~column["end"], next_observations=column["next"],
        cost_names=["flag", "damage"], metadata=Metadata(horizon=HORIZON),
    )  # fmt: skip


def rows_of(data: Dataset, task: Task) -> dict[str, np.ndarray]:
    """The fields of `Rows`, in the task's units."""
    columns = transitions(data, task)
    ended = (columns["discount"] == 0).astype(np.float32)
    return {name: columns[name] for name in ("obs", "actions", "utilities", "next_obs")} | {"ended": ended}


@cache
def fitted() -> tuple[Dataset, Task, dict[str, np.ndarray], Dynamics]:
    """The log, its task, its rows and its dynamics, which several tests look at."""
    data = mixed_log()
    task = state_task(data, resolve_limits(["flag=2", "damage=3"], data.cost_names), 0.9)
    rows = rows_of(data, task)
    episode = np.repeat(np.arange(len(data.episodes)), data.episodes.lengths)
    held = np.arange(len(data.episodes)) % 4 == 0
    return data, task, rows, fit_dynamics(task, rows, episode, held, SETTINGS)[0]


@eqx.filter_jit
def random_episodes(dynamics: Dynamics, first: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """States (M, T, n, D) and chances of being alive (M, T, n) of uniform actions in every network."""

    def one(network: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(carry: Any, t: jax.Array) -> Any:
            s, alive = carry
            key_act, key_next = jax.random.split(jax.random.fold_in(key, t))
            a = jax.random.uniform(key_act, (len(s), 1), minval=-1.0, maxval=1.0)
            after, _, end = dynamics.step(network, s, a, key_next)
            return (after, alive * (1.0 - end)), (s, alive)

        return jax.lax.scan(step, (first, jnp.ones(len(first))), jnp.arange(HORIZON))[1]

    return jax.vmap(one)(dynamics.networks, jax.random.split(key, dynamics.level.shape[0]))
