"""Critics f(s, a), for continuous and for discrete actions.

A *choice* is explained in `slater.deep.nets.policy`.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from slater.deep.nets.mlp import MLP
from slater.deep.task import Task


class Critic(eqx.Module):
    """f(s, a): a network on (observation, action), or on the observation with one output per action."""

    mlp: MLP
    discrete: bool = eqx.field(static=True)

    def __call__(self, obs: Array, choice: Array) -> Array:
        """f(s, choice), shape `(batch,)`; see the module's text for what a choice is."""
        if self.discrete:
            return jnp.sum(self.mlp(obs) * choice, axis=-1)
        return self.mlp(jnp.concatenate([obs, choice], axis=-1))[..., 0]


def make_critic(task: Task, hidden: Sequence[int], key: Array) -> Critic:
    """A critic for the problem's observations and actions."""
    if task.discrete:
        sizes = [task.obs_dim, *hidden, task.action_dim]
    else:
        sizes = [task.obs_dim + task.action_dim, *hidden, 1]
    return Critic(MLP(sizes, key), task.discrete)


def make_critics(task: Task, hidden: Sequence[int], key: Array, count: int) -> tuple[Critic, ...]:
    """`count` critics at random."""
    return tuple(make_critic(task, hidden, k) for k in jax.random.split(key, count))
