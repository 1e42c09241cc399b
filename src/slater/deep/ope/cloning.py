"""Many clones at once: policies that imitate the rows of a log that are theirs.

    maximise  E_{rows of p}[log pi_p(a|s)]      for policies p = 1..P

Where the log says how likely its actions were (propensities), a clone is also to agree with them,

    minimise  E_{rows of p}[huber(log pi_p(a|s) - log p(a|s))],

which is 0 for the policy that acted: that target has none of the noise which single actions have.

Whose rows are whose is said by numbers of rows, drawn beforehand: a row of weight w stands w times as often
in the list, so that a cohort's clone and an advantage-weighted policy are the same thing here. A policy is
kept as it was when the likelihood of its held-out rows was best (where agreement leads: their loss).

In an unstable system a clone must be right at the few rows at which its source catches itself.
`thorough_clones` are trained for longer, and

    from a common start   one network for all policies, with a shift of the first layer and a last layer for
                          each, so that what sources have in common is learned from the rows of all
    on rows by error      half of the rows of a minibatch are drawn by |log pi(a|s) - log p(a|s)| as it was
                          when the row was last seen
    by agreement, later   after a fifth of the iterations the likelihood, in which the noise of single actions
                          is, hardly counts beside the agreement
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep.compiled import jit_once
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.ope.base import Tick
from slater.deep.task import Task, scaled_actions

__all__ = [
    "CloneSettings", "clone_many", "drawn_rows", "log_densities", "log_likelihoods", "one_of",
    "thorough_clones",
]  # fmt: skip

#: rows that judge a policy while it is trained
HELD_ROWS = 4096
#: range of the log standard deviation of a clone's actions before the tanh
CLONE_LOG_STD = (-5.0, 1.0)
#: weight of the agreement with propensities beside the likelihood
AGREEMENT = 5.0
#: rows per policy and iteration, and learning rate, of the common start
COMMON_BATCH, COMMON_RATE = 64, 3e-3
#: share of the iterations after which the likelihood counts as `late_likelihood` says
LATE = 0.2
#: range of the errors that rows are drawn by, in nats
ERRORS = (0.02, 5.0)


@dataclass(frozen=True)
class CloneSettings:
    """How clones are trained; equal settings on equal rows give the same bits."""

    steps: int = 5_000
    """iterations"""
    chunk: int = 1_000
    """iterations between looks at the held-out likelihood"""
    batch_size: int = 128
    """rows per policy and iteration"""
    learning_rate: float = 3e-3
    """of Adam, falling to 0 along a cosine"""
    hidden: tuple[int, ...] = (128, 128)
    """layers of a policy"""
    seed: int = 0
    """of the initial weights and the minibatches"""
    common_steps: int = 0
    """iterations of the common start of all policies, before their own; 0: each starts at random"""
    by_error: float = 0.0
    """share of a minibatch that is drawn by how wrong the policy was about its rows"""
    late_likelihood: float = 1.0
    """weight of the likelihood after the first fifth of the iterations, for policies that have densities"""


def thorough_clones(settings: CloneSettings) -> CloneSettings:
    """The same with four times the iterations, from a common start, on rows by error.

    Chosen on cartpole, walker and DroneCircle, seed 0 (`docs/lab`, 2026-11-18).
    """
    return replace(
        settings, steps=4 * settings.steps, chunk=4 * settings.chunk, learning_rate=1e-3,
        common_steps=2 * settings.steps, by_error=0.5, late_likelihood=0.02,
    )  # fmt: skip


def drawn_rows(
    rows: NDArray[Any], count: int, seed: int, weights: NDArray[Any] | None = None
) -> NDArray[np.int32]:
    """`count` of the given rows, each about as often as its weight says; every one where they are alike."""
    rng = np.random.default_rng(seed)
    if weights is None:
        whole = np.tile(rows, count // len(rows))
        rest = rng.choice(rows, count - len(whole), replace=False)
        return np.concatenate([whole, rest]).astype(np.int32)
    chance = np.asarray(weights, dtype=np.float64)
    # systematic resampling: a row of expected count m is taken floor(m) or ceil(m) times
    edges = np.cumsum(chance / chance.sum())
    places = (np.arange(count) + rng.random()) / count
    return rows[np.minimum(np.searchsorted(edges, places), len(rows) - 1)].astype(np.int32)


def clone_many(
    task: Task, obs: Array, actions: Array, rows: Array, held: Array, settings: CloneSettings,
    densities: Array | None = None, imitates: NDArray[np.bool_] | None = None, tick: Tick | None = None,
) -> tuple[PolicyNetwork, NDArray[np.float64]]:  # fmt: skip
    """P policies (leaves with an axis P first), and the best mean held-out log-likelihood of each, (P,).

    obs, actions: all rows in the task's units, on the device; rows: (P, n) numbers of the rows that train
    each policy; held: (P, m) of those that judge it; densities: (N,) log p(a|s) of the policy that acted, NaN
    where it is not known (`log_densities`); imitates: (P,) whether all of a policy's rows are of one policy
    that acted, whose densities it is to have.
    """
    count = rows.shape[0]
    if densities is None:
        densities = jnp.full(obs.shape[0], jnp.nan)
    shares = jnp.ones(count) if imitates is None else jnp.asarray(imitates, jnp.float32)
    key_start, key_run = jax.random.split(jax.random.key(settings.seed))
    data = (obs, actions, rows, held, densities, shares)
    if settings.common_steps:
        shared = _Shared(make_policy(task, settings.hidden, key_start, CLONE_LOG_STD), count)
        policies = _common_start(settings, actions_of(task), data, shared, key_run, tick)
    else:
        make = jit_once(jax.vmap(lambda k: make_policy(task, settings.hidden, k, CLONE_LOG_STD)))
        policies = make(jax.random.split(key_start, count))

    total = settings.common_steps + settings.steps
    errors = jnp.ones(rows.shape) if settings.by_error else jnp.zeros(())
    carry = (policies, _adam(settings).init(policies), errors)
    best, kept = np.full(count, -np.inf), policies
    for first in range(0, settings.steps, settings.chunk):
        last = min(first + settings.chunk, settings.steps)
        carry, found = _advance(
            settings, actions_of(task), data, carry, key_run, jnp.asarray(first), jnp.asarray(last)
        )
        values = np.asarray(found, dtype=np.float64)
        gains = values > best
        kept = _better(jnp.asarray(gains), carry[0], kept)
        best = np.maximum(best, values)
        if tick is not None:
            tick("clones of the log's cohorts", settings.common_steps + last, total)
    if settings.late_likelihood != 1.0:  # kept by their loss; what is told of them is their likelihood
        best = np.asarray(_held_likelihoods(actions_of(task), kept, obs, actions, held), dtype=np.float64)
    return kept, best


def _better(gains: Array, new: PolicyNetwork, old: PolicyNetwork) -> PolicyNetwork:
    """The new policies where `gains`, (P,), is true, else the old ones."""
    found: PolicyNetwork = jax.tree.map(
        lambda n, o: jnp.where(gains.reshape(-1, *[1] * (n.ndim - 1)), n, o), new, old
    )
    return found


def _adam(settings: CloneSettings) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(settings.learning_rate, max(settings.steps, 1)))


def actions_of(task: Task) -> int | None:
    """The number of discrete actions; None if actions are vectors."""
    return task.action_dim if task.discrete else None


def _likelihood(policy: PolicyNetwork, actions_count: int | None, obs: Array, actions: Array) -> Array:
    a = actions if actions_count is None else jax.nn.one_hot(actions, actions_count)
    return policy.log_prob(obs, a)


def _loss(
    settings: CloneSettings, discrete: int | None, data: tuple[Array, ...], policy: PolicyNetwork, own: Array,
    share: Array, late: Array | bool,
) -> tuple[Array, Array]:  # fmt: skip
    """The loss of a policy on the rows `own`, and its errors there, (rows,), in nats (1 where not known).

    share: 1 if all its rows are of one policy that acted, else 0; late: whether the agreement is to lead.
    """
    obs, actions, _, _, densities, _ = data
    liked = _likelihood(policy, discrete, obs[own], actions[own])
    gap = liked - densities[own]
    known = jnp.isfinite(gap)
    agreement = jnp.where(known, optax.huber_loss(jnp.where(known, gap, 0.0)), 0.0)
    if settings.late_likelihood != 1.0:
        leads = late & known & (share > 0)
        liked = jnp.where(leads, settings.late_likelihood, 1.0) * liked
    errors = jnp.where(known & (share > 0), jnp.clip(jnp.abs(gap), *ERRORS), 1.0)
    return jnp.mean(AGREEMENT * share * agreement - liked), errors


@eqx.filter_jit
def _advance(
    settings: CloneSettings, discrete: int | None, data: tuple[Array, ...], carry: Any, key: Array,
    first: Array, last: Array,
) -> tuple[Any, Array]:  # fmt: skip
    """Iterations `first` to `last`, and what policies are kept by, (P,), after them: the mean held-out
    likelihood, or, where that hardly counts, the loss on the held-out rows, negative.
    """
    obs, actions, rows, held, _, shares = data
    adam = _adam(settings)

    def kept_by(policy: PolicyNetwork, own: Array, share: Array) -> Array:
        if settings.late_likelihood != 1.0:
            return -_loss(settings, discrete, data, policy, own, share, True)[0]
        return jnp.mean(_likelihood(policy, discrete, obs[own], actions[own]))

    def step(index: Array, carry: Any) -> Any:
        policies, opt, errors = carry
        shape = (rows.shape[0], settings.batch_size)
        now = jax.random.fold_in(key, index)
        places = jax.random.randint(now, shape, 0, rows.shape[1])
        if settings.by_error:
            places = _by_error(places, errors, settings.by_error, jax.random.fold_in(now, 1))
        own = jnp.take_along_axis(rows, places, axis=1)
        late = index >= LATE * settings.steps
        gradient = jax.grad(lambda p, o, s: _loss(settings, discrete, data, p, o, s, late), has_aux=True)
        grads, found = jax.vmap(gradient)(policies, own, shares)
        updates, opt = adam.update(grads, opt)
        if settings.by_error:
            errors = jax.vmap(lambda e, where, new: e.at[where].set(new))(errors, places, found)
        return optax.apply_updates(policies, updates), opt, errors

    carry = jax.lax.fori_loop(first, last, step, carry)
    return carry, jax.vmap(kept_by)(carry[0], held, shares)


def _by_error(places: Array, errors: Array, share: float, key: Array) -> Array:
    """`places`, (P, batch), with about `share` of them drawn in proportion to `errors`, (P, n)."""
    key_place, key_which = jax.random.split(key)
    edges = jnp.cumsum(errors, axis=1)
    drawn = jax.random.uniform(key_place, places.shape) * edges[:, -1:]
    found = jnp.minimum(jax.vmap(jnp.searchsorted)(edges, drawn), errors.shape[1] - 1)
    return jnp.where(jax.random.uniform(key_which, places.shape) < share, found, places)


class _Shared(eqx.Module):
    """P policies that have their layers in common, but for shifts of the first and weights of the last.

    policy: what they share; shift: (P, units) of the first layer; last: (P, units, outputs) added to the last
    """

    policy: PolicyNetwork
    shift: Array
    last: Array

    def __init__(self, policy: PolicyNetwork, count: int) -> None:
        self.policy = policy
        self.shift = jnp.zeros((count, *policy.mlp.biases[0].shape))
        self.last = jnp.zeros((count, *policy.mlp.weights[-1].shape))

    def own(self, shift: Array, last: Array) -> PolicyNetwork:
        """One of the policies, by its entries of `shift` and `last`."""
        mlp = self.policy.mlp
        biases = (mlp.biases[0] + shift, *mlp.biases[1:])
        weights = (*mlp.weights[:-1], mlp.weights[-1] + last)
        found: PolicyNetwork = eqx.tree_at(
            lambda policy: (policy.mlp.biases, policy.mlp.weights), self.policy, (biases, weights)
        )
        return found


def _common_start(
    settings: CloneSettings, discrete: int | None, data: tuple[Array, ...], shared: _Shared, key: Array,
    tick: Tick | None,
) -> PolicyNetwork:  # fmt: skip
    """Policies after the iterations that they have in common, leaves with an axis P first."""
    rows, shares, key = data[2], data[5], jax.random.fold_in(key, settings.steps)
    adam = optax.adam(optax.cosine_decay_schedule(COMMON_RATE, settings.common_steps))

    @eqx.filter_jit
    def advance(data: tuple[Array, ...], carry: Any, first: Array, last: Array) -> Any:
        def loss(shared: _Shared, own: Array) -> Array:
            def each(shift: Array, last: Array, own: Array, share: Array) -> Array:
                return _loss(settings, discrete, data, shared.own(shift, last), own, share, False)[0]

            return jnp.mean(jax.vmap(each)(shared.shift, shared.last, own, shares))

        def step(index: Array, carry: Any) -> Any:
            shared, opt = carry
            shape = (rows.shape[0], COMMON_BATCH)
            places = jax.random.randint(jax.random.fold_in(key, index), shape, 0, rows.shape[1])
            grads = jax.grad(loss)(shared, jnp.take_along_axis(rows, places, axis=1))
            updates, opt = adam.update(grads, opt)
            return optax.apply_updates(shared, updates), opt

        return jax.lax.fori_loop(first, last, step, carry)

    carry = (shared, adam.init(shared))
    for first in range(0, settings.common_steps, settings.chunk):
        last = min(first + settings.chunk, settings.common_steps)
        carry = advance(data, carry, jnp.asarray(first), jnp.asarray(last))
        if tick is not None:
            carry[0].shift.block_until_ready()
            tick("clones of the log's cohorts", last, settings.common_steps + settings.steps)
    ended = carry[0]
    found: PolicyNetwork = jax.vmap(ended.own)(ended.shift, ended.last)
    return found


@eqx.filter_jit
def _held_likelihoods(
    discrete: int | None, policies: PolicyNetwork, obs: Array, actions: Array, held: Array
) -> Array:
    def mean(policy: PolicyNetwork, own: Array) -> Array:
        return jnp.mean(_likelihood(policy, discrete, obs[own], actions[own]))

    return jax.vmap(mean)(policies, held)


def log_densities(dataset: Dataset, task: Task) -> NDArray[np.float32] | None:
    """Log-density log p(a|s) of the rows of `transitions` in the task's actions, (N,); None: not recorded.

    NaN for an action at a bound, where the density of a squashed Gaussian has no digits left.
    """
    if dataset.propensity is None:
        return None
    rows = np.flatnonzero(dataset.next_known)
    found = np.log(np.maximum(dataset.propensity[rows], 1e-300))
    if not task.discrete:
        assert task.action_low is not None
        assert task.action_high is not None
        found = found + np.log((task.action_high - task.action_low) / 2.0).sum()
        found[(np.abs(scaled_actions(dataset.actions[rows], task)) > 0.998).any(axis=1)] = np.nan
    return found.astype(np.float32)


def one_of(policies: PolicyNetwork, index: int) -> PolicyNetwork:
    """Policy `index` of many."""
    found: PolicyNetwork = jax.tree.map(lambda leaf: leaf[index], policies)
    return found


def log_likelihoods(task: Task, policies: PolicyNetwork, obs: Array, actions: Array) -> NDArray[np.float64]:
    """The log-likelihood log pi_p(a|s) of every row under every policy, shape (rows, P)."""
    size = 16_384
    parts = [
        _block(policies, actions_of(task), obs[i : i + size], actions[i : i + size])
        for i in range(0, len(obs), size)
    ]
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


@eqx.filter_jit
def _block(policies: PolicyNetwork, discrete: int | None, obs: Array, actions: Array) -> Array:
    return jax.vmap(lambda policy: _likelihood(policy, discrete, obs, actions))(policies).T
