"""Behaviour cloning: the most likely policy given the data, or given a chosen part of its episodes.

    maximise  E_D[log pi(a|s)]     with the density of the squashed action (tanh and its change of volume)

over the episodes that `which` names, by their undiscounted sums (limits converted by `slater.limits`):

    all               every row; the limit plays no part
    safe              complete episodes with every cost within its limit ("BC-Safe")
    frontier          complete episodes whose return is within `frontier_width` of the range of returns
                      from a curve through the Pareto set of (least cost, most return): a polynomial in the
                      cost of degree 0, 1 or 2, the first that explains 90% of the set's variance
    cost-conditioned  complete episodes, the policy told each episode's costs; it is exported with the
                      limits in their place

The preset `released` is the published form: a deterministic tanh network and squared error.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from slater.data.episodes import Episodes
from slater.deep.algorithms.base import Config, LastIterate
from slater.deep.algorithms.registry import register
from slater.deep.batches import Data
from slater.deep.nets.mlp import MLP, descend
from slater.deep.nets.policy import Categorical, Gaussian, PolicyNetwork, make_policy
from slater.deep.task import Task
from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianMixturePolicy, GaussianPolicy


@dataclass(frozen=True)
class BCConfig(Config):
    """Settings of behaviour cloning."""

    which: Literal["all", "safe", "frontier", "cost-conditioned"] = "all"
    """episodes to clone: see the module's text"""
    eta: float = 1e-3
    """learning rate (released: 1e-3)"""
    likelihood: Literal["squashed", "squared"] = "squashed"
    """loss for continuous actions: squashed Gaussian, or squared error of tanh(mean) (released: squared)"""
    log_std_min: float = -5.0
    """smallest log standard deviation before the tanh: actions that repeat exactly have no density"""
    frontier_width: float = 0.2
    """which = frontier: distance from the curve, as a share of the range of returns (released: .2)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("eta", "frontier_width")


class ClonedRows(NamedTuple):
    """What is cloned (N rows): obs (N, obs_dim), actions; costs (N, I) of the row's episode, normalised.

    target: (I,) the limits in the units of `costs`, within their range; share: of all episodes, cloned.
    """

    obs: Array
    actions: Array
    costs: Array
    target: Array
    share: Array


class Conditioned(PolicyNetwork):
    """A policy that sees the observation and I numbers; on its own it puts `target`, shape (I,), there."""

    mlp: MLP
    target: Array
    log_std_range: tuple[float, float] | None = eqx.field(static=True)

    @property
    def inner(self) -> PolicyNetwork:
        """The policy of observation and condition, whose parameters are `mlp`."""
        return Categorical(self.mlp) if self.log_std_range is None else Gaussian(self.mlp, self.log_std_range)

    def told(self, obs: Array, costs: Array) -> Array:
        """The input of the inner policy, `(batch, obs_dim + I)`."""
        return jnp.concatenate([obs, jnp.broadcast_to(costs, (*obs.shape[:-1], costs.shape[-1]))], axis=-1)

    def choice(self, obs: Array, key: Array) -> Array:
        """That of the inner policy at the target."""
        return self.inner.choice(self.told(obs, self.target), key)

    def log_prob(self, obs: Array, choice: Array) -> Array:
        """That of the inner policy at the target."""
        return self.inner.log_prob(self.told(obs, self.target), choice)

    def entropy(self, obs: Array, key: Array) -> Array:
        """That of the inner policy at the target."""
        return self.inner.entropy(self.told(obs, self.target), key)

    def export(self, task: Task) -> GaussianPolicy | GaussianMixturePolicy | CategoricalPolicy:
        """The target becomes part of the first layer's bias: a policy of the observation alone."""
        weight, bias = self.mlp.weights[0], self.mlp.biases[0]
        fixed: PolicyNetwork = eqx.tree_at(
            lambda pi: (pi.mlp.weights[0], pi.mlp.biases[0]), self.inner,
            (weight[: task.obs_dim], bias + self.target @ weight[task.obs_dim :]),
        )  # fmt: skip
        return fixed.export(task)


class BCState(eqx.Module):
    """The policy and its optimiser."""

    pi: PolicyNetwork
    opt: Any


@register
class BC(LastIterate[BCConfig, BCState]):
    """Behaviour cloning; see the module's text."""

    name: ClassVar[str] = "bc"
    label: ClassVar[str] = "BC"
    imitates: ClassVar[bool] = True
    Config: ClassVar[type[Config]] = BCConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {"steps": 100_000, "likelihood": "squared", "normalise_observations": False}
    }

    def __init__(self, config: BCConfig) -> None:
        super().__init__(config)
        self.adam = optax.adam(config.eta)

    def data(self, dataset: Dataset, task: Task, data: Data) -> ClonedRows:
        """The rows of the chosen episodes; refuses limits that no episode keeps, where they matter."""
        which = choose_episodes(dataset.episodes, task, self.config)
        episode = np.repeat(np.arange(len(which)), dataset.episodes.lengths)[dataset.next_known]
        rows = np.flatnonzero(which[episode])
        costs = dataset.episodes.costs_per_episode
        mean, std = costs[which].mean(axis=0), np.maximum(costs[which].std(axis=0), 1e-6)
        # a limit above all episodes' costs asks for no more than the costliest of them
        target = np.clip(_episode_limits(task), costs[which].min(axis=0), costs[which].max(axis=0))
        return ClonedRows(
            obs=data.obs[rows],
            actions=data.actions[rows],
            costs=jnp.asarray((costs[episode[rows]] - mean) / std, dtype=jnp.float32),
            target=jnp.asarray((target - mean) / std, dtype=jnp.float32),
            share=jnp.asarray(which.mean(), dtype=jnp.float32),
        )

    def draw(self, task: Task, data: ClonedRows, key: Array) -> ClonedRows:
        """A minibatch, uniform over the chosen rows."""
        rows = jax.random.randint(key, (self.config.batch_size,), 0, data.obs.shape[0])
        actions = data.actions[rows]
        if task.discrete:
            actions = jax.nn.one_hot(actions, task.action_dim)
        return data._replace(obs=data.obs[rows], actions=actions, costs=data.costs[rows])

    def init(self, task: Task, key: Array) -> BCState:
        """A policy at random."""
        squared = self.config.likelihood == "squared"
        # squared error fits no spread: the policy is its mean
        spread = (-20.0, -20.0) if squared else (self.config.log_std_min, 2.0)
        if self.config.which != "cost-conditioned":
            pi = make_policy(task, self.config.hidden, key, spread)
            return BCState(pi, self.adam.init(pi))
        wider = replace(task, obs_dim=task.obs_dim + task.costs)
        inner = make_policy(wider, self.config.hidden, key, spread)
        pi = Conditioned(inner.mlp, jnp.zeros(task.costs), None if task.discrete else spread)
        return BCState(pi, self.adam.init(inner))

    def update(
        self, task: Task, state: BCState, batch: ClonedRows, key: Array, step: Array, phase: str
    ) -> tuple[BCState, dict[str, Array]]:
        """One step on -E_D[log pi(a|s)]."""
        pi, obs = state.pi, batch.obs
        if isinstance(pi, Conditioned):
            obs = pi.told(obs, batch.costs)

        def loss(pi: PolicyNetwork) -> Array:
            if self.config.likelihood == "squared" and isinstance(pi, Gaussian):
                mean, _ = jnp.split(pi.mlp(obs), 2, axis=-1)
                return jnp.mean((jnp.tanh(mean) - batch.actions) ** 2)
            return -jnp.mean(pi.log_prob(obs, batch.actions))

        trained = pi.inner if isinstance(pi, Conditioned) else pi
        trained, opt, value = descend(self.adam, loss, trained, state.opt)
        if isinstance(pi, Conditioned):
            trained = Conditioned(trained.mlp, batch.target, pi.log_std_range)
        return BCState(trained, opt), {"loss/clone": value, "episodes/share": batch.share}


@dataclass(frozen=True)
class BCSafeConfig(BCConfig):
    """Settings of BC-Safe: those of `bc`, with the safe episodes as the default."""

    which: Literal["all", "safe", "frontier", "cost-conditioned"] = "safe"
    """episodes to clone: see the module's text"""


@register
class BCSafe(BC):
    """Behaviour cloning of the episodes within the limits."""

    name: ClassVar[str] = "bc-safe"
    label: ClassVar[str] = "BC-Safe"
    published_as: ClassVar[str | None] = "BC-Safe"
    Config: ClassVar[type[Config]] = BCSafeConfig


def choose_episodes(episodes: Episodes, task: Task, config: BCConfig) -> NDArray[np.bool_]:
    """Which episodes to clone, shape (E,)."""
    if config.which == "all":
        return np.ones(len(episodes), dtype=np.bool_)
    if config.which == "frontier":
        return _near_frontier(episodes, config.frontier_width)
    safe = episodes.keep(task.limits, task.units)
    if not safe.any():
        raise InputError(_nothing_safe(episodes, task))
    return safe if config.which == "safe" else episodes.judged


def _episode_limits(task: Task) -> NDArray[np.float64]:
    return task.units.thresholds(task.limits, "episode")


_NONE_JUDGED = "no episode of this data is complete and lived half the horizon"


def _nothing_safe(episodes: Episodes, task: Task) -> str:
    """The sentence for limits that no episode keeps: names the smallest episode cost of each."""
    judged = episodes.judged
    if not judged.any():
        return f"{_NONE_JUDGED}, so none is known to be safe; add the end of episodes."
    limits, least = _episode_limits(task), episodes.costs_per_episode[judged].min(axis=0)
    parts = [
        f"{name} (limit {limit:g} per episode, smallest {small:g})"
        for name, limit, small in zip(task.cost_names, limits, least, strict=True)
    ]
    alone = " all at once, though some episode is within each" if np.all(least <= limits) else ""
    return f"no episode is within the limits{alone}: {', '.join(parts)}; raise a limit, or clone all with bc."


def _near_frontier(episodes: Episodes, width: float) -> NDArray[np.bool_]:
    """Episodes near the curve through the Pareto set; of several costs, the mean, each over its largest."""
    judged = episodes.judged
    if not judged.any():
        raise InputError(f"{_NONE_JUDGED}, so there is no frontier; clone all with bc.")
    costs, value = episodes.costs_per_episode, episodes.returns_per_episode
    largest = np.maximum(np.abs(costs[judged]).max(axis=0), 1e-12)
    cost = (costs / largest).mean(axis=1)
    order = np.flatnonzero(judged)[np.lexsort((-value[judged], cost[judged]))]
    best = np.maximum.accumulate(value[order])
    # in the order of cost, an episode is on the frontier if it beats all that cost less
    frontier = order[np.concatenate([[True], value[order][1:] > best[:-1]])]
    spread = float(np.var(value[frontier]))
    for degree in range(min(3, len(frontier))):
        curve = np.poly1d(np.polyfit(cost[frontier], value[frontier], degree))
        if np.mean((curve(cost[frontier]) - value[frontier]) ** 2) <= 0.1 * spread:
            break
    near = np.abs(value - curve(cost)) <= width * np.ptp(value[judged])
    return np.asarray(judged & near)
