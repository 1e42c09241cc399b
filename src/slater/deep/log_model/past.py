"""Does the past matter? Whether what came before a step says more of it than its observation does.

An observation may not be a state: wear, temperature, a customer's patience. Then two equal observations lead
to different futures, and neither the log model nor any policy of one observation can be right about both. The
test: costs and the next observation are predicted from (s, a), and from (s, a) and running means of the
episode's past, by two small networks on the same rows; every episode is held out once, and says, paired,
whether the second one is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.deep.nets.mlp import MLP

__all__ = ["past_matters", "running_means"]

F64 = NDArray[np.float64]
#: share of what is left unexplained that the past must explain, and in how many standard errors, to matter
SHARE, ERRORS = 0.01, 3.5
#: share of a goal's variance that is as good as explained, whatever explains the rest
EXPLAINED = 0.02
#: parts of the episodes, of which each judges networks that the others train, but for the next one, which
#: stops
PARTS = 5
#: iterations, looks at the episodes that stop, rows per iteration, learning rate and layers
STEPS, LOOKS, BATCH, RATE, HIDDEN = 2_000, 10, 256, 2e-3, (64, 64)
#: rows at most
MOST_ROWS = 24_000


def running_means(values: F64, episode: NDArray[np.int64]) -> F64:
    """Of every row, the mean of the rows before it in its episode, (N, n); 0 for the first."""
    start = np.append(True, np.diff(episode) != 0)
    place = np.arange(len(values)) - np.maximum.accumulate(np.where(start, np.arange(len(values)), 0))
    total = np.cumsum(values, axis=0) - values
    before = total - total[np.arange(len(values)) - place]
    return np.asarray(before / np.maximum(place, 1)[:, None])


def past_matters(
    obs: NDArray[Any], actions: NDArray[Any], utilities: NDArray[Any], next_obs: NDArray[Any],
    episode: NDArray[np.int64], names: Sequence[str], seed: int = 0,
    steps: int = STEPS,
) -> tuple[str, ...]:  # fmt: skip
    """Names of what the past predicts: costs by their `names`, (I,), and "the next observation".

    Rows as in `slater.deep.log_model.dynamics.Rows`, in the order of their episodes. steps: iterations of a
    network; too few find nothing.
    """
    count = int(episode.max()) + 1
    if count < 2 * PARTS or len(obs) / count < 2:
        return ()
    if len(obs) > MOST_ROWS:  # episodes enough: the test is about what is plain to see
        few = episode % -(-len(obs) // MOST_ROWS) == 0
        _, fewer = np.unique(episode[few], return_inverse=True)
        return past_matters(obs[few], actions[few], utilities[few], next_obs[few], fewer, names, seed, steps)
    part = np.random.default_rng(seed).permutation(count) % PARTS
    now = np.concatenate([obs, actions], axis=1).astype(np.float64)
    past = running_means(np.concatenate([now, utilities], axis=1).astype(np.float64), episode)
    past = past / np.maximum(past.std(axis=0), 1e-6)
    change = (next_obs - obs).astype(np.float64)
    lengths = np.maximum(np.bincount(episode, minlength=count), 1)[:, None]
    found: list[str] = []
    # a cost may look at the state after the step, which is no past
    for what, inputs, goals in (
        (tuple(names), np.concatenate([now, next_obs], axis=1), utilities[:, 1:].astype(np.float64)),
        (("the next observation",), now, change),
    ):  # fmt: skip
        size = goals.std(axis=0)
        # what changes by its rounding alone is no goal
        units = np.where(size > 1e-5, (goals - goals.mean(axis=0)) / np.maximum(size, 1e-5), 0.0)
        each = []
        for seen in (inputs, np.concatenate([inputs, past], axis=1)):
            loss = _losses(seen, units, part[episode], seed, steps)
            sums = np.stack([np.bincount(episode, column, count) for column in loss.T], axis=1) / lengths
            each.append(sums if len(what) == sums.shape[1] else sums.mean(axis=1, keepdims=True))
        for name, without, with_past in zip(what, each[0].T, each[1].T, strict=True):
            gain = without - with_past
            error = gain.std(ddof=1) / np.sqrt(len(gain))
            if gain.mean() > max(ERRORS * error, SHARE * without.mean()) and without.mean() > EXPLAINED:
                found.append(name)
    return tuple(found)


def _losses(inputs: F64, goals: F64, part: NDArray[np.int64], seed: int, steps: int) -> F64:
    """Squared errors of every row and goal, (N, n), by networks that did not see the row's part."""
    rng = np.random.default_rng(seed)
    key_start, key_run = jax.random.split(jax.random.key(seed))
    start = MLP([inputs.shape[1], *HIDDEN, goals.shape[1]], key_start, layer_norm=True, smooth=True)
    x, y, errors = jnp.asarray(inputs, jnp.float32), jnp.asarray(goals, jnp.float32), np.zeros(goals.shape)
    stretch = -(-steps // LOOKS)
    least = min(np.sum((part != k) & (part != (k + 1) % PARTS)) for k in range(PARTS))
    for judge in range(PARTS):
        stopping = (judge + 1) % PARTS
        # as many rows for every part, so that one compiled program serves all
        train = rng.permutation(np.flatnonzero((part != judge) & (part != stopping)))[:least]
        stop = np.resize(rng.permutation(np.flatnonzero(part == stopping)), 4 * BATCH)
        carry, best = (start, optax.scale_by_adam().init(start)), np.full(goals.shape[1], np.inf)
        own = np.flatnonzero(part == judge)
        for look in range(LOOKS):
            places = jnp.asarray([look * stretch, (look + 1) * stretch, LOOKS * stretch])
            carry, found = _advance((x, y, jnp.asarray(train)), jnp.asarray(stop), carry, key_run, places)
            now = np.asarray(found, np.float64)
            better = now < best
            if better.any():  # goal by goal: each is taken from where it was best
                said = np.asarray(carry[0](x[own]), np.float64)
                errors[np.ix_(own, better)] = (said - goals[own])[:, better] ** 2
                best = np.minimum(best, now)
    return errors


@eqx.filter_jit
def _advance(
    data: tuple[Array, Array, Array], stop: Array, carry: Any, key: Array, places: Array
) -> tuple[Any, Array]:
    x, y, train = data
    adam = optax.scale_by_adam()

    def step(index: Array, carry: Any) -> Any:
        network, opt = carry
        own = train[jax.random.randint(jax.random.fold_in(key, index), (BATCH,), 0, len(train))]
        grads = jax.grad(lambda n: jnp.mean(jnp.sum((n(x[own]) - y[own]) ** 2, axis=-1)))(network)
        updates, opt = adam.update(grads, opt)
        rate = -RATE * 0.5 * (1.0 + jnp.cos(jnp.pi * index / places[2]))
        return jax.tree.map(lambda n, u: n + rate * u, network, updates), opt

    carry = jax.lax.fori_loop(places[0], places[1], step, carry)
    return carry, jnp.mean((carry[0](x[stop]) - y[stop]) ** 2, axis=0)
