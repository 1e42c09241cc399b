"""The fits of a log, one after the other: dynamics, behaviours, candidates, and whether the past matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep.batches import transitions
from slater.deep.candidates.in_sample import advantages, directions, row_weights
from slater.deep.log_model.behaviours import Behaviours, find_behaviours
from slater.deep.log_model.clones import (
    HELD_ROWS,
    CloneSettings,
    clone_many,
    drawn_rows,
    log_likelihoods,
    random_policies,
)
from slater.deep.log_model.dynamics import Dynamics, Rows, fit_dynamics, random_dynamics
from slater.deep.log_model.log_model import LogModel, LogModelSettings
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.task import Task, counts_episodes, in_j_units, normalised, raw_utilities, rollout_length

__all__ = ["Log", "outcomes"]

F64 = NDArray[np.float64]
Tick = Callable[[str, int, int], None]

#: share of the episodes that train nothing: they stop fits and say what behaviours did
HELD_SHARE = 0.25
#: temperatures of advantage-weighted clones; the cold one for directions of costs alone, which are to be safe
TEMPERATURE, COLD = 0.5, 0.15
#: log-likelihood of an action below which it is an outlier, of which one is not to sort an episode
LEAST_LIKELY = -20.0


@dataclass(frozen=True, eq=False)
class Log:
    """A log in the task's units, as fits take it: fields of `Rows`, the episode of each row, held-out
    episodes.
    """

    dataset: Dataset
    task: Task
    settings: LogModelSettings
    rows: dict[str, NDArray[Any]]
    episode: NDArray[np.int64]
    held: NDArray[np.bool_]

    @classmethod
    def of(cls, dataset: Dataset, task: Task, settings: LogModelSettings) -> Log:
        """A dataset in the task's units; a quarter of its episodes, by the settings' seed, is held out."""
        columns = transitions(dataset, task)
        actions = columns["actions"]
        if task.discrete:
            actions = np.eye(task.action_dim, dtype=np.float32)[actions]
        rows = {
            "obs": columns["obs"], "actions": actions, "utilities": columns["utilities"],
            "ended": (columns["discount"] == 0).astype(np.float32), "next_obs": columns["next_obs"],
        }  # fmt: skip
        table = dataset.episodes
        episode = np.repeat(np.arange(len(table)), table.lengths)[np.flatnonzero(dataset.next_known)]
        held = np.zeros(len(table), dtype=bool)
        if len(table) > 1:
            order = np.random.default_rng(settings.seed).permutation(len(table))
            held[order[: max(round(HELD_SHARE * len(table)), 1)]] = True
        return cls(dataset, task, settings, rows, episode, held)

    def like(self, count: int) -> tuple[Dynamics, PolicyNetwork]:
        """Networks in the shape of a fitted model with so many candidates."""
        return (
            random_dynamics(self.task, self.settings.dynamics),
            random_policies(self.task, self.settings.clones, count),
        )

    def model(
        self, behaviours: Behaviours, dynamics: Dynamics, candidates: PolicyNetwork, kinds: tuple[str, ...],
        past: tuple[str, ...],
    ) -> LogModel:  # fmt: skip
        """Put together."""
        first = normalised(self.dataset.initial_observations, self.task)
        seen = np.random.default_rng(0).integers(len(self.episode), size=512)
        steps = np.abs(self.rows["utilities"].astype(np.float64))
        event = (steps**2).sum(axis=0) / np.maximum(steps.sum(axis=0), 1e-12) / in_j_units(self.task)[:-1]
        return LogModel(
            self.task, behaviours, dynamics, candidates, kinds, outcomes(self.dataset, self.task), event,
            past, first, self.rows["obs"][seen],
        )  # fmt: skip

    def fitted(self, tick: Tick | None) -> LogModel:
        """All fits, one after the other."""
        settings, task, rows = self.settings, self.task, self.rows
        dynamics, _ = fit_dynamics(task, rows, self.episode, self.held, settings.dynamics, tick)
        behaviours = self.behaviours()
        kinds, train, stop = self._weighted(dynamics, behaviours)
        device = (jnp.asarray(rows["obs"]), jnp.asarray(rows["actions"], jnp.float32))
        candidates, _ = clone_many(
            task, *device, jnp.asarray(train), jnp.asarray(stop), settings.clones, tick
        )
        return self.model(behaviours, dynamics, candidates, kinds, self.dataset.hidden)

    def behaviours(self) -> Behaviours:
        """By how episodes acted: neither rewards nor costs take part."""
        obs, actions, source = self.rows["obs"], self.rows["actions"], self.dataset.source
        return find_behaviours(
            obs, _residuals(obs, actions), self.episode, self.dataset.episodes.judged, self.held,
            self._likelihoods, None if source is None else np.asarray(source), self.settings.behaviours,
        )  # fmt: skip

    def _likelihoods(self, rows: NDArray[np.int32], turn: int) -> F64:
        """Mean log-likelihood of every episode's actions under small clones of `rows`, (K, n): (E, K)."""
        obs, actions = jnp.asarray(self.rows["obs"]), jnp.asarray(self.rows["actions"], jnp.float32)
        steps = self.settings.clones.steps[0] * 2 // 5
        small = CloneSettings(steps=(steps, steps), hidden=(64, 64), components=1)
        clones, _ = clone_many(self.task, obs, actions, jnp.asarray(rows), jnp.asarray(rows[:, :512]), small)
        of_rows = np.maximum(log_likelihoods(clones, obs, actions), LEAST_LIKELY)
        count = len(self.held)
        total = np.stack([np.bincount(self.episode, column, count) for column in of_rows.T], axis=1)
        return np.asarray(total / np.maximum(np.bincount(self.episode, minlength=count), 1)[:, None])

    def _weighted(
        self, dynamics: Dynamics, behaviours: Behaviours
    ) -> tuple[tuple[str, ...], NDArray[np.int32], NDArray[np.int32]]:
        """What every candidate is, and the rows that train and stop it, (P, n) and (P, m)."""
        task, held = self.task, self.held[self.episode]
        parts = (np.flatnonzero(~held), np.flatnonzero(held) if held.any() else np.flatnonzero(~held))
        sizes, label = (len(parts[0]), min(HELD_ROWS, len(parts[1]))), behaviours.labels[self.episode]
        kinds, drawn = [], []

        def add(kind: str, weights: F64) -> None:
            kinds.append(kind)
            own = [np.where(weights[rows].sum() > 0, weights[rows], 1.0) for rows in parts]
            drawn.append([drawn_rows(r, n, 0, w) for r, n, w in zip(parts, sizes, own, strict=True)])

        for number, name in enumerate(behaviours.names):
            add(f"clone of {name}", (label == number).astype(np.float64))
        add("clone of the log", np.ones(len(label)))
        ways = directions(task.costs)
        gained = self._advantages(dynamics, ways)
        for way, advantage in zip(ways, gained.T, strict=True):
            what = " ".join(f"{x:.2g}" for x in way)
            add(f"in-sample policy of direction {what}", row_weights(advantage, TEMPERATURE))
            if way[0] == 0:
                add(f"in-sample policy of direction {what}, cold", row_weights(advantage, COLD))
        return tuple(kinds), np.stack([d[0] for d in drawn]), np.stack([d[1] for d in drawn])

    def _advantages(self, dynamics: Dynamics, ways: F64) -> F64:
        """Of every row in every direction, (N, L), by what the model expects at the rows."""
        task, table = self.task, self.dataset.episodes
        device = Rows(**{name: jnp.asarray(self.rows[name], jnp.float32) for name in Rows._fields})

        def one(network: Any) -> Array:
            _, outcomes, level = network
            return dynamics.outcome(outcomes, level, device.obs, device.actions, device.next_obs)[0]

        expected = np.asarray(jnp.mean(jax.vmap(one)(dynamics.networks), axis=0), np.float64)
        lengths = np.bincount(self.episode, minlength=len(table))
        last = np.append(np.diff(self.episode) != 0, True)
        # where limits count episodes the horizon ends them; else what is cut off goes on
        goes_on = (
            last & (self.rows["ended"] == 0) & (not counts_episodes(task) or table.cut_off[self.episode])
        )
        gamma = 1.0 if counts_episodes(task) else task.gamma
        return advantages(
            self.rows["obs"], self.rows["actions"], expected, lengths[lengths > 0], rollout_length(task),
            goes_on, self.rows["next_obs"], ~self.held[self.episode], ways, self.settings.in_sample, gamma,
        )  # fmt: skip


def _residuals(obs: NDArray[Any], actions: NDArray[Any]) -> F64:
    """Actions less their regression on states and squared states, (N, a)."""
    inputs = np.concatenate([np.ones((len(obs), 1)), obs, obs**2], axis=1).astype(np.float64)
    some = np.random.default_rng(0).permutation(len(obs))[:50_000]
    found = np.linalg.lstsq(inputs[some], actions[some].astype(np.float64), rcond=None)[0]
    return np.asarray(actions - inputs @ found)


def outcomes(dataset: Dataset, task: Task) -> F64:
    """What every episode did, (E, 2+I): utilities in J-units of the task, then the length in steps.

    An episode that was cut off goes on at its rate.
    """
    table, utilities = dataset.episodes, raw_utilities(dataset) * task.scale
    length = rollout_length(task)
    weights = np.ones(length) if counts_episodes(task) else task.gamma ** np.arange(length)
    rows = []
    for start, stop, cut in zip(table.starts, table.stops, table.cut_off, strict=True):
        stop = min(stop, start + length)
        lived = weights[: stop - start] @ utilities[start:stop]
        if cut:
            lived = lived + weights[stop - start :].sum() * utilities[start:stop].mean(axis=0)
        rows.append(lived)
    sums = np.concatenate([np.array(rows), table.lengths[:, None]], axis=1).astype(np.float64)
    return np.asarray(sums / in_j_units(task))
