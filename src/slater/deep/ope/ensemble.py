"""OPE by a probabilistic ensemble: rollouts in networks that know noise, ends and each other's data apart.

Each of M networks has two parts,

    s' ~ s + N(mean(s, a), std(s, a)),      U = U(s, a, s'),   P(end | s, a, s')

and its own bootstrap of the log's *episodes*, so that what the networks disagree about is what the data
leave open, not only how they were initialised. Rollouts sample s': where a cost sets in beyond a line, the
mean state may never cross it and the noise does. A cost that is an indicator has a logistic head on the
state after the step, trained by cross-entropy, so that errors near 0 stay near 0; other utilities are
regressed. An episode's end weighs what comes after it by the probability of being alive, and the mean
length is estimated beside the utilities.

The Gaussian is fitted by the likelihood with each term weighted by its own standard deviation (beta-NLL,
Seitzer et al. 2022, beta = 1/2): the plain likelihood neglects entries that are hard to predict, and least
squares the others.

How right a rollout of T steps is rests on the error of one step, which is small where networks are large,
normalised and smooth, and trained for long (`thorough_ensemble`): most of what a quick fit takes for noise is
then gone. That takes minutes, so a study begins with the quick fit and goes on where its check fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep.batches import transitions
from slater.deep.compiled import jit_once
from slater.deep.nets.mlp import MLP
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Tick
from slater.deep.task import Task, counts_episodes, in_j_units, normalised, rollout_length

__all__ = [
    "Ensemble", "EnsembleSettings", "Values", "acted", "careful", "ensemble_values", "fit_ensemble",
    "joined", "networks_apart", "random_ensemble", "rolled",
    "thorough_ensemble",
]  # fmt: skip

#: range of the log standard deviation of a change of state, in units of that entry's typical change
LOG_STD = (-7.0, 1.0)
#: iterations of a fit between two words on it
TOLD_EVERY = 1_000
#: a change of state of more than this many root mean squares is a fault of a simulator or of a network
LARGEST_CHANGE = 10.0
#: weight of the outcomes' losses beside the state's
OUTCOME_WEIGHT = 4.0


@dataclass(frozen=True)
class EnsembleSettings:
    """How an ensemble is fitted; equal settings on equal data give the same bits."""

    copies: int = 4
    """networks"""
    steps: int = 10_000
    """iterations"""
    batch_size: int = 128
    """transitions per network and iteration"""
    learning_rate: float = 1e-3
    """of Adam, falling to 0 along a cosine"""
    hidden: tuple[int, ...] = (128, 128)
    """layers of the part that predicts s'"""
    outcome_hidden: tuple[int, ...] = (64, 64)
    """layers of the part that predicts utilities and ends"""
    seed: int = 0
    """of the bootstrap, the initial weights and the minibatches"""
    normalised: bool = False
    """normalise what each hidden layer of the part that predicts s' gives, and SiLU for ReLU"""
    left_out: float | None = None
    """share of the episodes that each network does not see, each being fitted alone; None: each sees a
    bootstrap of the episodes, and all are fitted as one product"""
    squared: bool = False
    """fit the change of s by its squared error, and sample no noise; else by its likelihood"""


class Ensemble(eqx.Module):
    """M networks, whose leaves have an axis M first, and what the data have shown.

    dynamics: (s, a) -> mean and log standard deviation of the change of s, in `unit`
    outcomes: (s, a, s') -> utilities (logits of those that are indicators), logit of an end
    unit: (obs_dim,) root mean square of s' - s; low, high: (obs_dim,) range of observations
    utility_low, utility_high: (1+I,); indicator: (1+I,) whether the utility takes its two extremes only
    ends: () 1 if any episode was ended by the task, else 0: small probabilities would add up
    """

    dynamics: MLP
    outcomes: MLP
    unit: Array
    low: Array
    high: Array
    utility_low: Array
    utility_high: Array
    indicator: Array
    ends: Array

    @property
    def copies(self) -> int:
        """M."""
        return int(jax.tree.leaves(self.dynamics)[0].shape[0])

    def only(self, which: slice) -> Ensemble:
        """Some of its networks."""
        parts = jax.tree.map(lambda leaf: leaf[which], (self.dynamics, self.outcomes))
        found: Ensemble = eqx.tree_at(lambda e: (e.dynamics, e.outcomes), self, parts)
        return found

    def change(self, dynamics: MLP, s: Array, a: Array) -> tuple[Array, Array]:
        """Mean and log standard deviation of the change of s, in `unit`, by one network for a batch."""
        mean, raw = jnp.split(dynamics(jnp.concatenate([s, a], axis=-1)), 2, axis=-1)
        low, high = LOG_STD
        log_std = high - jax.nn.softplus(high - raw)
        return mean, low + jax.nn.softplus(log_std - low)

    def outcome(self, outcomes: MLP, s: Array, a: Array, s_next: Array) -> tuple[Array, Array]:
        """Expected utilities (batch, 1+I) and P(end) (batch,) of a step, by one network."""
        out = outcomes(jnp.concatenate([s, a, s_next], axis=-1))
        width = self.utility_high - self.utility_low
        chance = self.utility_low + width * jax.nn.sigmoid(out[:, :-1])
        # regressed utilities may overshoot by their range: a clip at its bounds would turn noise into bias
        regressed = jnp.clip(out[:, :-1], self.utility_low - width, self.utility_high + width)
        return jnp.where(self.indicator, chance, regressed), self.ends * jax.nn.sigmoid(out[:, -1])

    def step(
        self, network: tuple[MLP, MLP], s: Array, a: Array, key: Array, noise: float = 1.0
    ) -> tuple[Array, Array, Array]:
        """A sampled s', its expected utilities and P(end), by one (dynamics, outcomes).

        noise: share of the standard deviation that is sampled; 0: s' is its mean.
        """
        mean, log_std = self.change(network[0], s, a)
        change = mean + noise * jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        # a tenth of the range beyond the range: a rollout that leaves it knows nothing any more
        room = 0.1 * (self.high - self.low)
        change = jnp.clip(change, -LARGEST_CHANGE, LARGEST_CHANGE) * self.unit
        s_next = jnp.clip(s + change, self.low - room, self.high + room)
        return s_next, *self.outcome(network[1], s, a, s_next)


class Values(NamedTuple):
    """What every network says of a policy; utilities reward first, then costs, then the episode's length.

    mean: (M, 2+I), the utilities in J-units of the task (see `ensemble_values`), the length in steps
    error: (M, 2+I) standard error of each mean, from the number of rollouts
    """

    mean: Array
    error: Array


def fit_ensemble(
    dataset: Dataset, task: Task, settings: EnsembleSettings, tick: Tick | None = None
) -> Ensemble:
    """The ensemble of a dataset in the task's units; rows without a known next state are left out."""
    if settings.left_out is not None:
        return joined([fit(tick) for fit in networks_apart(dataset, task, settings)])
    columns = transitions(dataset, task)
    known = np.flatnonzero(dataset.next_known)
    episode = np.repeat(np.arange(len(dataset.episodes)), dataset.episodes.lengths)[known]
    rows = _bootstrap(episode, settings.copies, settings.seed)
    start = random_ensemble(task, columns, settings)
    return _fitted(task, settings, start, _on_device(columns), jnp.asarray(rows), tick)


def thorough_ensemble(settings: EnsembleSettings) -> EnsembleSettings:
    """The same with networks and training for logs of which the quick fit is wrong.

    Chosen on CarCircle, AntRun, DroneCircle, walker and cartpole, seed 0 (`docs/lab`, 2026-11-18).
    """
    return replace(
        settings, copies=3, steps=3 * settings.steps, hidden=(256, 256, 256), normalised=True, left_out=0.1
    )


def networks_apart(
    dataset: Dataset, task: Task, settings: EnsembleSettings
) -> list[Callable[[Tick | None], Ensemble]]:
    """What fits each network, without a share of the episodes of its own; to be `joined`."""
    columns = transitions(dataset, task)
    known = np.flatnonzero(dataset.next_known)
    episode = np.repeat(np.arange(len(dataset.episodes)), dataset.episodes.lengths)[known]
    device = _on_device(columns)

    def one(number: int, tick: Tick | None) -> Ensemble:
        own = replace(settings, copies=1, seed=settings.seed * settings.copies + number)
        seen = np.random.default_rng(own.seed).random(len(dataset.episodes)) >= (settings.left_out or 0.0)
        rows = np.flatnonzero(seen[episode]) if seen[episode].any() else np.arange(len(episode))
        start = random_ensemble(task, columns, own)
        return _fitted(task, own, start, device, jnp.asarray(rows[None], jnp.int32), tick)

    return [partial(one, number) for number in range(settings.copies)]


def joined(parts: Sequence[Ensemble]) -> Ensemble:
    """One ensemble of the networks of several, on the same data."""
    networks = [(ensemble.dynamics, ensemble.outcomes) for ensemble in parts]
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *networks)
    found: Ensemble = eqx.tree_at(lambda e: (e.dynamics, e.outcomes), parts[0], both)
    return found


def _on_device(columns: dict[str, NDArray[Any]]) -> dict[str, Array]:
    names = ("obs", "actions", "utilities", "discount", "next_obs")
    return {name: jnp.asarray(columns[name]) for name in names}


def random_ensemble(task: Task, columns: dict[str, NDArray[Any]], settings: EnsembleSettings) -> Ensemble:
    """Networks at random with the statistics of `columns` (see `slater.deep.batches.transitions`)."""
    obs, utilities, inputs = task.obs_dim, 1 + task.costs, task.obs_dim + task.action_dim
    key_dynamics, key_outcomes = jax.random.split(jax.random.key(settings.seed))

    def many(sizes: list[int], key: Array, normalised: bool = False) -> MLP:
        make = jax.vmap(lambda k: MLP(sizes, k, layer_norm=normalised, smooth=normalised))
        networks: MLP = jit_once(make)(jax.random.split(key, settings.copies))
        return networks

    change = columns["next_obs"] - columns["obs"]
    root = np.sqrt(np.mean(change.astype(np.float64) ** 2, axis=0))
    both = np.stack([columns["obs"].min(axis=0), columns["next_obs"].min(axis=0)])
    top = np.stack([columns["obs"].max(axis=0), columns["next_obs"].max(axis=0)])
    u = columns["utilities"]
    low, high = u.min(axis=0), u.max(axis=0)
    extreme = np.all((u == low) | (u == high), axis=0) & (high > low)
    return Ensemble(
        dynamics=many([inputs, *settings.hidden, 2 * obs], key_dynamics, settings.normalised),
        outcomes=many([inputs + obs, *settings.outcome_hidden, utilities + 1], key_outcomes),
        unit=jnp.asarray(np.where(root > 1e-6, root, 1.0), jnp.float32),
        low=jnp.asarray(both.min(axis=0)), high=jnp.asarray(top.max(axis=0)),
        utility_low=jnp.asarray(low), utility_high=jnp.asarray(high), indicator=jnp.asarray(extreme),
        ends=jnp.asarray(float((columns["discount"] == 0).any()), jnp.float32),
    )  # fmt: skip


def _bootstrap(episode: NDArray[np.int64], copies: int, seed: int) -> NDArray[np.int32]:
    """Rows for every network, shape (M, N): of episodes drawn with replacement, cut or refilled to N."""
    rng = np.random.default_rng(seed)
    starts = np.flatnonzero(np.append(True, np.diff(episode) != 0))
    stops = np.append(starts[1:], len(episode))
    rows = []
    for _ in range(copies):
        drawn = rng.integers(len(starts), size=len(starts))
        own = np.concatenate([np.arange(starts[e], stops[e]) for e in drawn])
        rows.append(rng.choice(own, len(episode), replace=len(own) < len(episode)))
    return np.stack(rows).astype(np.int32)


def _loss(
    ensemble: Ensemble, squared: bool, network: tuple[MLP, MLP], s: Array, a: Array, u: Array, ended: Array,
    s_next: Array,
) -> Array:  # fmt: skip
    """beta-NLL of the change (or its `squared` error), cross-entropy of indicators and ends, squared error of
    other utilities.
    """
    dynamics, outcomes = network
    mean, log_std = ensemble.change(dynamics, s, a)
    goal = jnp.clip((s_next - s) / ensemble.unit, -LARGEST_CHANGE, LARGEST_CHANGE)
    nll = 0.5 * ((goal - mean) * jnp.exp(-log_std)) ** 2 + log_std
    likelihood = jax.lax.stop_gradient(jnp.exp(log_std)) * nll
    state = jnp.mean(jnp.sum((goal - mean) ** 2 if squared else likelihood, axis=-1))
    out = outcomes(jnp.concatenate([s, a, s_next], axis=-1))
    width = jnp.maximum(ensemble.utility_high - ensemble.utility_low, 1e-9)
    chance = optax.sigmoid_binary_cross_entropy(out[:, :-1], (u - ensemble.utility_low) / width)
    utility = jnp.where(ensemble.indicator, chance, (out[:, :-1] - u) ** 2)
    end = optax.sigmoid_binary_cross_entropy(out[:, -1], ended)
    return state + OUTCOME_WEIGHT * jnp.mean(jnp.sum(utility, axis=-1) + end)


def _fitted(
    task: Task, settings: EnsembleSettings, start: Ensemble, device: dict[str, Array], rows: Array,
    tick: Tick | None,
) -> Ensemble:  # fmt: skip
    adam = optax.adam(optax.cosine_decay_schedule(settings.learning_rate, max(settings.steps, 1)))
    key = jax.random.key(settings.seed + 1)

    @eqx.filter_jit
    def advance(
        device: dict[str, Array], rows: Array, carry: tuple[tuple[MLP, MLP], Any], first: Array, last: Array
    ) -> tuple[tuple[MLP, MLP], Any]:
        def gradient(network: tuple[MLP, MLP], own: Array) -> tuple[MLP, MLP]:
            a = device["actions"][own]
            if task.discrete:
                a = jax.nn.one_hot(a, task.action_dim)
            ended = (device["discount"][own] == 0).astype(jnp.float32)
            batch = (device["obs"][own], a, device["utilities"][own], ended, device["next_obs"][own])
            found: tuple[MLP, MLP] = jax.grad(lambda n: _loss(start, settings.squared, n, *batch))(network)
            return found

        def step(index: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            networks, opt = carry
            places = jax.random.randint(
                jax.random.fold_in(key, index), (rows.shape[0], settings.batch_size), 0, rows.shape[1]
            )
            grads = jax.vmap(gradient)(networks, jnp.take_along_axis(rows, places, axis=1))
            updates, opt = adam.update(grads, opt)
            return optax.apply_updates(networks, updates), opt

        end: tuple[tuple[MLP, MLP], Any] = jax.lax.fori_loop(first, last, step, carry)
        return end

    networks = (start.dynamics, start.outcomes)
    carry: tuple[tuple[MLP, MLP], Any] = (networks, adam.init(networks))
    for first in range(0, settings.steps, TOLD_EVERY):
        last = min(first + TOLD_EVERY, settings.steps)
        carry = advance(device, rows, carry, jnp.asarray(first), jnp.asarray(last))
        if tick is not None:
            carry[0][0].weights[0].block_until_ready()
            tick("model of the log", last, settings.steps)
    ended: Ensemble = eqx.tree_at(lambda e: (e.dynamics, e.outcomes), start, carry[0])
    return _silenced(ended) if settings.squared else ended


def _silenced(ensemble: Ensemble) -> Ensemble:
    """The same with the least standard deviation everywhere: no loss has taught these networks another."""
    weights, biases = ensemble.dynamics.weights[-1], ensemble.dynamics.biases[-1]
    half = weights.shape[-1] // 2
    found: Ensemble = eqx.tree_at(
        lambda e: (e.dynamics.weights[-1], e.dynamics.biases[-1]), ensemble,
        (weights.at[..., half:].set(0.0), biases.at[..., half:].set(-100.0)),
    )  # fmt: skip
    return found


def acted(discrete: bool, policy: PolicyNetwork, s: Array, key_choice: Array, key_action: Array) -> Array:
    """An action of `policy` in each of the states (n, obs_dim), as networks take it, (n, action_dim)."""
    a = policy.choice(s, key_choice)
    if discrete:  # a choice is then the distribution; an episode takes one action of it
        a = jax.nn.one_hot(jax.random.categorical(key_action, jnp.log(a + 1e-30)), a.shape[-1])
    return a


def rolled(
    task: Task, ensemble: Ensemble, policy: PolicyNetwork, first: Array, key: Array, steps: int,
    noise: float = 1.0,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """`steps` steps of `policy` in every network, from the first states `first`, (n, obs_dim).

    The states after them, (M, n, obs_dim), the probability of being alive there, (M, n), and sums of the
    scaled utilities and of the steps lived, (M, n, 2+I): of whole episodes, or discounted as the limits are.
    """
    gamma, whole = task.gamma, counts_episodes(task)

    def one(network: tuple[MLP, MLP], key: Array) -> tuple[Array, Array, Array]:
        def step(carry: tuple[Array, Array, Array], t: Array) -> tuple[tuple[Array, Array, Array], None]:
            s, alive, total = carry
            key_choice, key_action, key_next = jax.random.split(jax.random.fold_in(key, t), 3)
            a = acted(task.discrete, policy, s, key_choice, key_action)
            s_next, utilities, end = ensemble.step(network, s, a, key_next, noise)
            weight = 1.0 if whole else gamma**t
            gained = jnp.concatenate([weight * utilities, jnp.ones((len(s), 1))], axis=-1)
            return (s_next, alive * (1.0 - end), total + alive[:, None] * gained), None

        start = (first, jnp.ones(first.shape[0]), jnp.zeros((first.shape[0], 2 + task.costs)))
        ended: tuple[Array, Array, Array] = jax.lax.scan(step, start, jnp.arange(steps))[0]
        return ended

    keys = jax.random.split(key, ensemble.copies)
    found: tuple[Array, Array, Array] = jax.vmap(one)((ensemble.dynamics, ensemble.outcomes), keys)
    return found


def ensemble_values(
    task: Task, ensemble: Ensemble, policy: PolicyNetwork, first: Array, key: Array, noise: float = 1.0
) -> Values:
    """What every network says of `policy`, from the first states `first`, shape (n, obs_dim).

    Utilities are in J-units of the scaled utilities, to compare with `task.tau`: where limits count
    episodes, the mean sum over an episode divided by T (1-gamma); else the discounted sum over the steps
    that data and discount allow, scaled up by the weight of the rest. noise: see `Ensemble.step`.
    """
    _, _, total = rolled(task, ensemble, policy, first, key, rollout_length(task), noise)
    total = total / jnp.asarray(in_j_units(task), total.dtype)
    return Values(jnp.mean(total, axis=1), jnp.std(total, axis=1) / math.sqrt(first.shape[0]))


def careful(
    task: Task, ensemble: Ensemble, initial: NDArray[np.float32], rollouts: int = 256, noise: float = 1.0
) -> Callable[[PolicyNetwork, Array], Values]:
    """`ensemble_values` from `rollouts` of the first observations `initial` (raw, (E, obs_dim)), compiled."""
    states = jnp.asarray(normalised(initial, task))

    @eqx.filter_jit
    def values(ensemble: Ensemble, policy: PolicyNetwork, key: Array) -> Values:
        key_first, key_rollout = jax.random.split(key)
        rows = jax.random.randint(key_first, (rollouts,), 0, states.shape[0])
        return ensemble_values(task, ensemble, policy, states[rows], key_rollout, noise)

    return lambda policy, key: values(ensemble, policy, key)
