"""TraC (Gong et al., AAAI 2025): behaviour by classifying pieces of trajectories into wanted and unwanted.

Episodes are cut into segments of L = ratio T steps. A segment is safe if every cost keeps its share L / T of
the limit. Desired: the best `desired` of the safe ones by return; undesired: unsafe ones, and the worst
`undesired` of the safe ones; the rest is dropped. A desired segment weighs kappa + (1 - kappa) r, r its
return between the least (0) and the largest (1) of the safe ones, a worst safe one the mirror, an unsafe
one 1. The likeness lp of an action is -|pi(s) - a|^2, or log pi(a|s) where actions are discrete.

    clone     minimises -E lp on labelled segments; a copy of the result is pi_ref
    classify  score = alpha sum_{t < L} .99^t (lp_t - lp_ref,t)
              minimises -E w [y log sigmoid(score) + eta_u (n_des / n_undes) (1 - y) log(1 - sigmoid(score))]

The policy has no memory, and one is trained per limit. Which of the policies kept along the way is the output
is decided by fitted Q evaluation on the log, never by a simulator: the best reward among those whose costs
are within the limits, else the least excess (`choose`; published numbers may be of the best of a hundred
evaluations in the simulator: their code saves that one and the last, and the paper does not say which).

Unlike published code: every segment of every complete episode is used (theirs draws with replacement, and
leaves out 37% at ratio 1, and short episodes always), pi and pi_ref see the same dropout, namely none, and
the logarithm of the sigmoid has a gradient where the fit is worst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep.algorithms.base import Config, LastIterate, Member
from slater.deep.algorithms.registry import register
from slater.deep.batches import Data
from slater.deep.game.timed import horizon_of
from slater.deep.nets.mlp import descend
from slater.deep.nets.policy import Gaussian, PolicyNetwork, make_policy
from slater.deep.ope.base import Check, Tick
from slater.deep.ope.fitted_q import FQE
from slater.deep.task import Task, normalised, scaled_actions
from slater.errors import InputError

#: weight of a later step of a segment, per step
DECAY = 0.99


@dataclass(frozen=True)
class TraCConfig(Config):
    """Settings of TraC. Defaults are those of published code for Bullet unless they say otherwise."""

    ratio: float = 0.5
    """L over the horizon, in (0, 1] (published: per task, 1 for BallRun, others not given)"""
    segments: int = 32
    """segments per iteration (published: 96)"""
    desired: float = 0.5
    """share of safe segments that are desired, by return"""
    undesired: float = 0.0
    """share of safe segments that are undesired, by return"""
    kappa: float = 0.7
    """weight of the worst desired segment; the best has 1"""
    alpha: float = 0.2
    """of the score"""
    eta_undesired: float = 0.25
    """weight of the undesired class against the desired one"""
    clone_rate: float = 1e-3
    """learning rate while cloning (published: 1e-4, for 30,000 of 130,000 iterations)"""
    eta: float = 1e-4
    """learning rate while classifying (published: 1e-5 after a warm-up)"""
    clone_steps: int = 10_000
    """iterations of cloning, at most two thirds of all"""
    choose: Literal["fqe", "last"] = "fqe"
    """which policy is the output: by fitted Q evaluation, or the last"""
    choose_among: int = 4
    """policies that are evaluated, the last ones kept"""
    choose_iterations: int = 4_000
    """iterations of each evaluation"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio <= 1:
            raise InputError(f"ratio must be above 0 and at most 1, not {self.ratio}.")
        self.require_positive(
            "segments", "alpha", "eta_undesired", "clone_rate", "eta", "choose_among", "choose_iterations"
        )
        if not 0 < self.desired <= 1 or not 0 <= self.undesired <= 1 or not 0 <= self.kappa <= 1:
            raise InputError("desired must be in (0, 1], undesired and kappa in [0, 1].")
        if self.clone_steps < 0:
            raise InputError(f"clone_steps must be at least 0, not {self.clone_steps}.")


class Segments(NamedTuple):
    """M labelled segments on the device, of rows of the data.

    obs, actions: (N, .) all rows; start, length: (M,); good: (M,) 1 if desired; weight: (M,)
    ratio: () desired over undesired; rows: the transitions, for the choice at the end
    """

    obs: Array
    actions: Array
    start: Array
    length: Array
    good: Array
    weight: Array
    ratio: Array
    rows: Data


class Labelled(NamedTuple):
    """What `label_segments` found: start, length, desired (bool) and weight of each segment, (M,)."""

    start: NDArray[np.int64]
    length: NDArray[np.int64]
    good: NDArray[np.bool_]
    weight: NDArray[np.float64]


def label_segments(dataset: Dataset, task: Task, config: TraCConfig) -> Labelled:
    """Every segment of every complete episode that is desired or undesired; see the module's text."""
    size = max(round(config.ratio * horizon_of(task)), 1)
    table = dataset.episodes
    start, length = [], []
    for first, stop in zip(table.starts[table.judged], table.stops[table.judged], strict=True):
        # the last one ends with the episode, and may overlap the one before
        starts = [*range(first, stop - size, size), max(stop - size, first)]
        start += starts
        length += [min(size, stop - s) for s in starts]
    begin, steps = np.array(start, dtype=np.int64), np.array(length, dtype=np.int64)
    sums = np.cumsum(np.column_stack([dataset.rewards, dataset.costs]).astype(np.float64), axis=0)
    sums = np.concatenate([np.zeros((1, sums.shape[1])), sums])
    totals = sums[begin + steps] - sums[begin]
    allowed = task.units.thresholds(task.limits, "episode") * size / horizon_of(task)
    # sums in floating point may miss a limit that they are equal to
    safe = np.all(totals[:, 1:] <= allowed + 1e-6 * np.maximum(allowed, 1.0), axis=1)
    if not safe.any():
        least = (totals[:, 1:] / np.maximum(allowed, 1e-12)).max(axis=1).argmin()
        raise InputError(
            f"no segment of {size} steps keeps its share of the limits ({allowed.round(4).tolist()}); the "
            f"nearest costs {totals[least, 1:].round(4).tolist()}: raise the limit, or change ratio."
        )
    returns = totals[:, 0]
    low, high = returns[safe].min(), returns[safe].max()
    height = np.clip((returns - low) / max(high - low, 1e-12), 0.0, 1.0)
    order = np.flatnonzero(safe)[np.argsort(-returns[safe], kind="stable")]
    good, bad = np.zeros(len(begin), dtype=np.bool_), ~safe
    good[order[: max(round(config.desired * len(order)), 1)]] = True
    worst = order[len(order) - round(config.undesired * len(order)) :]
    bad[worst] |= ~good[worst]
    upward = np.where(good, height, 1.0 - height)
    weight = np.where(safe, config.kappa + (1.0 - config.kappa) * upward, 1.0)
    kept = np.flatnonzero(good | bad)
    return Labelled(begin[kept], steps[kept], good[kept], weight[kept])


class TraCState(eqx.Module):
    """pi, the clone that it is compared with, and the optimisers of both phases."""

    pi: PolicyNetwork
    reference: PolicyNetwork
    opt_clone: Any
    opt: Any


@register
class TraC(LastIterate[TraCConfig, TraCState]):
    """Trajectory classification; see the module's text."""

    name: ClassVar[str] = "trac"
    label: ClassVar[str] = "TraC"
    published_as: ClassVar[str | None] = "TraC"
    imitates: ClassVar[bool] = True
    preparation: ClassVar[tuple[str, str, str] | None] = ("clone_steps", "clone", "classify")
    Config: ClassVar[type[Config]] = TraCConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "published": {
            "steps": 130_000, "clone_steps": 30_000, "segments": 96, "ratio": 1.0, "clone_rate": 1e-4,
            "eta": 1e-5, "choose": "last", "normalise_observations": False,
        }
    }  # fmt: skip

    def __init__(self, config: TraCConfig) -> None:
        super().__init__(config)
        self.adam_clone = optax.adam(config.clone_rate)
        self.adam = optax.adam(config.eta)

    def data(self, dataset: Dataset, task: Task, data: Data) -> Segments:
        """Every labelled segment; refuses limits of which no segment keeps its share."""
        found = label_segments(dataset, task, self.config)
        return Segments(
            obs=jnp.asarray(normalised(dataset.observations, task)),
            actions=jnp.asarray(scaled_actions(dataset.actions, task)),
            start=jnp.asarray(found.start), length=jnp.asarray(found.length),
            good=jnp.asarray(found.good, dtype=jnp.float32), weight=jnp.asarray(found.weight, jnp.float32),
            ratio=jnp.asarray(found.good.sum() / max((~found.good).sum(), 1), jnp.float32), rows=data,
        )  # fmt: skip

    def draw(self, task: Task, data: Segments, key: Array) -> tuple[Array, ...]:
        """Segments uniformly: obs and actions (m, L, .), decay (m, L) 0 after its end, y, weights, ratio."""
        which = jax.random.randint(key, (self.config.segments,), 0, data.start.shape[0])
        time = jnp.arange(max(round(self.config.ratio * horizon_of(task)), 1))
        length = data.length[which][:, None]
        rows = data.start[which][:, None] + jnp.minimum(time, length - 1)
        actions = data.actions[rows]
        if task.discrete:
            actions = jax.nn.one_hot(actions, task.action_dim)
        decay = jnp.where(time < length, DECAY**time, 0.0)
        return data.obs[rows], actions, decay, data.good[which], data.weight[which], data.ratio

    def init(self, task: Task, key: Array) -> TraCState:
        """A policy at random, without spread where actions are continuous."""
        pi = make_policy(task, self.config.hidden, key, (-20.0, -20.0))
        own = jax.tree.map(jnp.copy, pi)  # a chunk may reuse the buffers of its state: none twice
        return TraCState(pi, own, self.adam_clone.init(pi), self.adam.init(pi))

    def update(
        self, task: Task, state: TraCState, batch: tuple[Array, ...], key: Array, step: Array, phase: str
    ) -> tuple[TraCState, dict[str, Array]]:
        """One step of cloning, or of classification."""
        obs, actions, decay, good, weight, ratio = batch
        config = self.config

        def clone(pi: PolicyNetwork) -> Array:
            alive = decay > 0
            return -jnp.sum(jnp.where(alive, likeness(pi, obs, actions), 0.0)) / jnp.sum(alive)

        if phase == "clone":
            pi, opt, value = descend(self.adam_clone, clone, state.pi, state.opt_clone)
            state = replace(state, pi=pi, reference=jax.tree.map(jnp.copy, pi), opt_clone=opt)
            return state, {"loss/clone": value}
        before = likeness(state.reference, obs, actions)

        def classify(pi: PolicyNetwork) -> tuple[Array, Array]:
            score = config.alpha * jnp.sum(decay * (likeness(pi, obs, actions) - before), axis=1)
            right = good * jax.nn.log_sigmoid(score)
            wrong = (1.0 - good) * jax.nn.log_sigmoid(-score) * config.eta_undesired * ratio
            return -jnp.mean(weight * (right + wrong)), jnp.mean(jnp.where(good > 0, score > 0, score < 0))

        pi, opt, (value, told) = descend(self.adam, classify, state.pi, state.opt, has_aux=True)
        return replace(state, pi=pi, opt=opt), {"loss/classify": value, "told_apart": told}

    def weigh(
        self, task: Task, state: Any, data: Segments, members: Sequence[Member],
        policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """All weight on the last, or on the one that fitted Q evaluation likes best."""
        config, known = self.config, list(members)
        if config.choose == "last":
            return super().weigh(task, state, data, members, policies, key, tick, check)
        fqe = FQE(task, data.rows, steps=config.choose_iterations, hidden=config.hidden)
        among = range(max(len(known) - config.choose_among, 0), len(known))
        scores = np.full(len(known), -np.inf)
        for n in among:
            J = fqe(policies[n], jax.random.fold_in(key, n)).mean(axis=0)
            tick("FQE of a policy", n - among[0] + 1, len(among))
            known[n] = replace(known[n], estimates=tuple(map(float, J)), careful=True)
            excess = float(np.max((J[1:] - task.tau) / np.maximum(task.tau, 1e-9)))
            # any that keeps the limits is above all that do not
            scores[n] = J[0] - task.value_low[0] if excess <= 0 else -excess
        return np.eye(len(known))[int(np.argmax(scores))], known


def likeness(pi: PolicyNetwork, obs: Array, actions: Array) -> Array:
    """The likeness lp of actions (..., .) at obs (..., .): -|tanh(mean) - a|^2, or log pi."""
    if isinstance(pi, Gaussian):
        mean, _ = jnp.split(pi.mlp(obs), 2, axis=-1)
        return -jnp.sum((jnp.tanh(mean) - actions) ** 2, axis=-1)
    return pi.log_prob(obs, actions)
