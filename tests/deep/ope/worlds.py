"""Small worlds of `ESTIMATION.md`, in which an estimate goes wrong in one known way each.

A world steps many episodes at once: `start(n, rng)` gives observations (n, o), `step(obs, action, rng)` the
next ones, rewards (n,), costs (n, I) and ends (n,). Behaviours are functions of observations and rng.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from slater.data import Dataset, Metadata
from slater.deep.nets.policy import Categorical, PolicyNetwork
from slater.deep.task import Task, normalised

Behaviour = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class World:
    start: Callable[[int, np.random.Generator], np.ndarray]
    step: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
    horizon: int
    discrete: bool = False

    def play(self, act: Behaviour, episodes: int, seed: int) -> list[dict[str, np.ndarray]]:
        """Rows of every episode, step by step; an ended episode's rows are marked by `alive`."""
        rng = np.random.default_rng(seed)
        obs, alive, rows = self.start(episodes, rng), np.ones(episodes, bool), []
        for _ in range(self.horizon):
            action = act(obs, rng)
            after, reward, cost, end = self.step(obs, action, rng)
            rows.append(
                {
                    "obs": obs,
                    "act": action,
                    "rew": reward,
                    "cost": cost,
                    "next": after,
                    "end": end,
                    "alive": alive,
                }
            )
            obs, alive = after, alive & ~end
        return rows

    def log(
        self, behaviours: Sequence[Behaviour], episodes: int, seed: int, *, named: bool = False
    ) -> Dataset:
        """`episodes` of each behaviour, one after the other; with their names as sources if `named`."""
        parts: dict[str, list[np.ndarray]] = {
            k: [] for k in ("obs", "act", "rew", "cost", "next", "end", "out")
        }
        for number, act in enumerate(behaviours):
            rows = self.play(act, episodes, seed + number)
            alive = np.stack([row["alive"] for row in rows], axis=1)
            last = np.zeros_like(alive)
            last[:, -1] = True
            for name in ("obs", "act", "rew", "cost", "next", "end"):
                parts[name].append(np.stack([row[name] for row in rows], axis=1)[alive])
            parts["out"].append((last & ~np.stack([row["end"] for row in rows], axis=1))[alive])
        column = {name: np.concatenate(values) for name, values in parts.items()}
        source = [f"policy {k}" for k in range(len(behaviours)) for _ in range(episodes)] if named else None
        return Dataset.from_arrays(
            observations=column["obs"], actions=column["act"], rewards=column["rew"], costs=column["cost"],
            terminals=column["end"], timeouts=column["out"], next_observations=column["next"], source=source,
            metadata=Metadata(horizon=self.horizon, num_actions=2 if self.discrete else None),
        )  # fmt: skip

    def truth(self, task: Task, policy: PolicyNetwork, episodes: int = 500, seed: int = 99) -> np.ndarray:
        """Mean return, costs and length of an episode of the policy, in the world itself, (2+I,)."""
        keys = iter(jax.random.split(jax.random.key(seed), 2 * self.horizon))

        def act(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            choice = policy.choice(jnp.asarray(normalised(obs.astype(np.float32), task)), next(keys))
            if isinstance(policy, Categorical):
                return np.asarray(jax.random.categorical(next(keys), jnp.log(choice + 1e-30)))
            return np.asarray(choice)

        rows = self.play(act, episodes, seed)
        alive = np.stack([row["alive"] for row in rows]).astype(float)
        reward = (alive * np.stack([row["rew"] for row in rows])).sum(axis=0).mean()
        costs = (alive[..., None] * np.stack([row["cost"] for row in rows])).sum(axis=0).mean(axis=0)
        return np.array([reward, *costs, alive.sum(axis=0).mean()])


def no_end(obs: np.ndarray) -> np.ndarray:
    return np.zeros(len(obs), bool)


def gamble(costs: int = 1, discrete: bool = False, delay: int = 0, horizon: int = 20) -> World:
    """Action > 0 pays 1 and costs 1 with probability .25; action < 0 pays .3. Contexts tell nothing.

    delay: steps after which the cost falls due, carried in the observation.
    """

    def start(n: int, rng: np.random.Generator) -> np.ndarray:
        return np.concatenate([rng.normal(size=(n, 2)), np.zeros((n, delay))], axis=1)

    def step(obs, action, rng):
        risky = action == 1 if discrete else action[:, 0] > 0
        bill = (risky[:, None] & (rng.random((len(obs), costs)) < 0.25)).astype(float)
        after = rng.normal(size=(len(obs), 2))
        if delay:
            due = obs[:, -1:].copy()
            after = np.concatenate([after, bill[:, :1], obs[:, 2:-1]], axis=1)
            bill = due
        return after, np.where(risky, 1.0, 0.3), bill, no_end(obs)

    return World(start, step, horizon, discrete)


def bold(share: float, discrete: bool = False) -> Behaviour:
    """Takes the risky action with probability `share`, whatever it sees."""

    def act(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        risky = rng.random(len(obs)) < share
        if discrete:
            return risky.astype(np.int32)
        return (np.where(risky, 1.0, -1.0) * rng.uniform(0.1, 0.9, len(obs)))[:, None]

    return act


def noise(line: float = 1.0, horizon: int = 20) -> World:
    """x' = x + .2 a + .1 xi, reward x', cost 1 beyond a line: noise crosses it, the mean does not."""

    def step(obs, action, rng):
        x = obs[:, :1] + 0.2 * action + 0.1 * rng.normal(size=(len(obs), 1))
        return x, x[:, 0], (x > line).astype(float), no_end(obs)

    return World(lambda n, rng: 0.1 * rng.normal(size=(n, 1)), step, horizon)


def towards(goal: float, width: float) -> Behaviour:
    """Moves to `goal` with a gain of 2 and a noise of `width` in its actions."""

    def act(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.clip(2.0 * (goal - obs[:, :1]) + width * rng.normal(size=(len(obs), 1)), -1, 1)

    return act


def ends(hazard: float = 0.05, horizon: int = 100) -> World:
    """Reward 1 and cost .1 a step until a hazard ends the episode: 1.99 of cost, 10 if it never ended."""

    def step(obs, action, rng):
        n = len(obs)
        return rng.normal(size=(n, 2)), np.ones(n), np.full((n, 1), 0.1), rng.random(n) < hazard

    return World(lambda n, rng: rng.normal(size=(n, 2)), step, horizon)
