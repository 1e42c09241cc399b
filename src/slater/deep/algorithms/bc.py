"""Behaviour cloning: the most likely policy given the data, or given a chosen part of its episodes.

    maximise  E_D[log pi(a|s)]     with the density of the squashed action (tanh and its change of volume)

over the episodes that `which` names: all, or, by undiscounted sums (limits converted by `slater.limits`), the
complete ones with every cost within its limit ("BC-Safe").

The preset `released` is the published form: a deterministic tanh network and squared error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from slater.deep.nets.mlp import descend
from slater.deep.nets.policy import Gaussian, PolicyNetwork, make_policy
from slater.deep.task import Task
from slater.errors import InputError


@dataclass(frozen=True)
class BCConfig(Config):
    """Settings of behaviour cloning."""

    which: Literal["all", "safe"] = "all"
    """episodes to clone: all, or complete ones with every cost within its limit"""
    eta: float = 1e-3
    """learning rate (released: 1e-3)"""
    likelihood: Literal["squashed", "squared"] = "squashed"
    """loss for continuous actions: squashed Gaussian, or squared error of tanh(mean) (released: squared)"""
    log_std_min: float = -5.0
    """smallest log standard deviation before the tanh: actions that repeat exactly have no density"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("eta")


class ClonedRows(NamedTuple):
    """What is cloned: obs (N, obs_dim) and actions of N rows; share: of all episodes, cloned."""

    obs: Array
    actions: Array
    share: Array


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
        which = choose_episodes(dataset.episodes, task, self.config.which)
        episode = np.repeat(np.arange(len(which)), dataset.episodes.lengths)[dataset.next_known]
        rows = np.flatnonzero(which[episode])
        return ClonedRows(data.obs[rows], data.actions[rows], jnp.asarray(which.mean(), dtype=jnp.float32))

    def draw(self, task: Task, data: ClonedRows, key: Array) -> ClonedRows:
        """A minibatch, uniform over the chosen rows."""
        rows = jax.random.randint(key, (self.config.batch_size,), 0, data.obs.shape[0])
        actions = data.actions[rows]
        if task.discrete:
            actions = jax.nn.one_hot(actions, task.action_dim)
        return data._replace(obs=data.obs[rows], actions=actions)

    def init(self, task: Task, key: Array) -> BCState:
        """A policy at random."""
        # squared error fits no spread: the policy is its mean
        squared = self.config.likelihood == "squared"
        spread = (-20.0, -20.0) if squared else (self.config.log_std_min, 2.0)
        pi = make_policy(task, self.config.hidden, key, spread)
        return BCState(pi, self.adam.init(pi))

    def update(
        self, task: Task, state: BCState, batch: ClonedRows, key: Array, step: Array, phase: str
    ) -> tuple[BCState, dict[str, Array]]:
        """One step on -E_D[log pi(a|s)]."""

        def loss(pi: PolicyNetwork) -> Array:
            if self.config.likelihood == "squared" and isinstance(pi, Gaussian):
                mean, _ = jnp.split(pi.mlp(batch.obs), 2, axis=-1)
                return jnp.mean((jnp.tanh(mean) - batch.actions) ** 2)
            return -jnp.mean(pi.log_prob(batch.obs, batch.actions))

        pi, opt, value = descend(self.adam, loss, state.pi, state.opt)
        return BCState(pi, opt), {"loss/clone": value, "episodes/share": batch.share}


@dataclass(frozen=True)
class BCSafeConfig(BCConfig):
    """Settings of BC-Safe: those of `bc`, with the safe episodes as the default."""

    which: Literal["all", "safe"] = "safe"
    """episodes to clone: all, or complete ones with every cost within its limit"""


@register
class BCSafe(BC):
    """Behaviour cloning of the episodes within the limits."""

    name: ClassVar[str] = "bc-safe"
    label: ClassVar[str] = "BC-Safe"
    published_as: ClassVar[str | None] = "BC-Safe"
    Config: ClassVar[type[Config]] = BCSafeConfig


def choose_episodes(episodes: Episodes, task: Task, which: str) -> NDArray[np.bool_]:
    """Which episodes to clone, shape (E,)."""
    if which == "all":
        return np.ones(len(episodes), dtype=np.bool_)
    safe = episodes.keep(task.limits, task.units)
    if not safe.any():
        raise InputError(_nothing_safe(episodes, task))
    return safe


def _nothing_safe(episodes: Episodes, task: Task) -> str:
    """The sentence for limits that no episode keeps: names the smallest episode cost of each."""
    judged = episodes.judged
    if not judged.any():
        none = "no episode of this data is complete and lived half the horizon"
        return f"{none}, so none is known to be safe; add the end of episodes."
    limits = task.units.thresholds(task.limits, "episode")
    least = episodes.costs_per_episode[judged].min(axis=0)
    parts = [
        f"{name} (limit {limit:g} per episode, smallest {small:g})"
        for name, limit, small in zip(task.cost_names, limits, least, strict=True)
    ]
    alone = " all at once, though some episode is within each" if np.all(least <= limits) else ""
    return f"no episode is within the limits{alone}: {', '.join(parts)}; raise a limit, or clone all with bc."
