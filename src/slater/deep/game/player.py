"""The game where the log model is the world: episodes are played in it, and pi climbs their Lagrangian.

    episodes    s_0 ~ the log's first states, a ~ pi(s), s' and U ~ the model, every network as many
    f, g^i      V of reward and costs at (s, t), regressed on what followed. In the model there is nothing to
                be pessimistic about: E_D of what is played is 0 up to the regression, so 2 E_D + A_D is A_D
    A           generalised advantages (Schulman et al. 2016) of the Lagrangian r - sum_i lambda_i c_i
    pi          Algorithm 1's oracle PO on networks, mirror descent: clipped steps along A (Schulman et al.
                2017), held to the candidate of the log that the player was started at,

                minimise  -E[min(rho A, clip(rho) A)] + anchor_weight KL(pi || start),   A of unit size

A policy that is far from all that the log did is one of which the posterior knows little: the hold keeps the
search where there is something to know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep.game.primal import PrimalState
from slater.deep.nets.mlp import MLP
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.task import Task, counts_episodes, rollout_length

__all__ = ["Experience", "ModelPlayer", "PlayerState", "World"]

#: weight of later surprises in an advantage, per step
TRACE = 0.97
#: norm at which a gradient of pi is cut
LARGEST = 0.5
#: how far the ratio of likelihoods may move before it is cut
CLIP = 0.2


class World(Protocol):
    """What can be played in: the dynamics of `slater.deep.log_model`."""

    @property
    def networks(self) -> Any:
        """Networks that each say what follows, leaves with an axis first; those of two halves of the log take
        turns.
        """
        ...

    def step(self, network: Any, s: Array, a: Array, key: Array) -> tuple[Array, Array, Array]:
        """A drawn s', the mean utilities and P(end), by one network."""
        ...


class Experience(eqx.Module):
    """N steps that were played: states with the time, (N, s+1), what was drawn, (N, a), its likelihoods (N,),
    advantages and sums to go of every utility, (N, 1+I), the probability of being alive, (N,); size (1+I,) of
    the sums, the unit of V.
    """

    states: Array
    actions: Array
    known: Array
    advantages: Array
    to_go: Array
    alive: Array
    size: Array


class PlayerState(PrimalState):
    """pi and its optimiser; the policy it is held to; V with its optimiser; what was played last."""

    anchor: PolicyNetwork
    critic: MLP
    critic_opt: Any
    played: Experience


@dataclass(frozen=True)
class ModelPlayer:
    """A pi-player in the log model.

    rate, critic_rate: of Adam; noise: range of log standard deviations, as the log's clones have it
    components: Gaussians of continuous actions; networks: of the log model that play, half of all
    rows: per step of Adam
    """

    hidden: tuple[int, ...]
    rate: float
    critic_rate: float
    noise: tuple[float, float]
    components: int
    networks: int
    rows: int
    anchor_weight: float

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(LARGEST), optax.adam(self.rate))

    def _episodes(self, task: Task) -> int:
        """How many episodes each network plays at once: some 12 minibatches of steps in all."""
        return max(12 * self.rows // (rollout_length(task) * self.networks), 2)

    def init(self, task: Task, key: Array) -> PlayerState:
        """A policy of zeros, which `start` replaces, V at random, and nothing played."""
        policy: PolicyNetwork = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
            jax.eval_shape(lambda: make_policy(task, self.hidden, key, self.noise, self.components)),
        )
        utilities = 1 + task.costs
        critic = MLP([task.obs_dim + 1, *self.hidden, utilities], key, last_scale=0.01)
        steps = rollout_length(task) * self.networks * self._episodes(task)
        nothing = Experience(
            states=jnp.zeros((steps, task.obs_dim + 1)), actions=jnp.zeros((steps, task.action_dim)),
            known=jnp.zeros(steps), advantages=jnp.zeros((steps, utilities)),
            to_go=jnp.zeros((steps, utilities)), alive=jnp.ones(steps), size=jnp.ones(utilities),
        )  # fmt: skip
        anchor = jax.tree.map(jnp.copy, policy)  # a chunk may reuse the buffers of its state: none twice
        critic_opt = optax.adam(self.critic_rate).init(critic)
        return PlayerState(policy, self._adam.init(policy), anchor, critic, critic_opt, nothing)

    def start(self, state: PlayerState, policy: PolicyNetwork) -> PlayerState:
        """The player at `policy`, and held to it; V goes on."""
        own = jax.tree.map(jnp.copy, policy)
        return replace(state, policy=policy, opt=self._adam.init(policy), anchor=own)

    def play(
        self, task: Task, state: PlayerState, dynamics: World, half: Array, first: Array, key: Array
    ) -> PlayerState:
        """With new episodes of pi from some of the states `first`, (n, obs_dim), in the networks of one half
        of the log, 0 or 1: the other half is to judge what comes of it.
        """
        steps, many = rollout_length(task), self._episodes(task)
        networks = jax.tree.map(lambda leaf: leaf.reshape(-1, 2, *leaf.shape[1:])[:, half], dynamics.networks)
        gamma = 1.0 if counts_episodes(task) else task.gamma
        key_first, key_roll = jax.random.split(key)
        starts = first[jax.random.randint(key_first, (self.networks, many), 0, len(first))]

        def timed(s: Array, t: Array) -> Array:
            return jnp.concatenate([s, jnp.full((len(s), 1), t / steps)], axis=-1)

        def one(network: Any, start: Array, key: Array) -> Any:
            def step(carry: Any, t: Array) -> Any:
                s, alive = carry
                key_act, key_next = jax.random.split(jax.random.fold_in(key, t))
                a = state.policy.drawn(s, key_act)
                s_next, utilities, end = dynamics.step(network, s, state.policy.taken(a), key_next)
                after = state.critic(timed(s_next, t + 1.0)) * jnp.where(t + 1 < steps, 1.0, 0.0)
                told = (timed(s, 1.0 * t), a, state.policy.log_drawn(s, a), utilities, after, end, alive)
                return (s_next, alive * (1.0 - end)), told

            return jax.lax.scan(step, (start, jnp.ones(many)), jnp.arange(steps))[1]

        told = jax.vmap(one, out_axes=1)(networks, starts, jax.random.split(key_roll, self.networks))
        states, actions, known, utilities, after, end, alive = told  # (steps, networks, many, ...)
        size = state.played.size
        value, goes_on = state.critic(states) * size, (gamma * (1.0 - end))[..., None]
        surprise = utilities + goes_on * after * size - value

        def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            found = now[0] + TRACE * now[1] * later
            return found, found

        advantages = jax.lax.scan(back, jnp.zeros_like(surprise[0]), (surprise, goes_on), reverse=True)[1]
        to_go = advantages + value

        def flat(x: Array) -> Array:
            return x.reshape(-1, *x.shape[3:])

        played = Experience(
            states=flat(states), actions=flat(actions), known=flat(known), advantages=flat(advantages),
            to_go=flat(to_go), alive=flat(alive),
            size=jnp.sqrt(jnp.mean(to_go**2, axis=(0, 1, 2))) + 1e-9,
        )  # fmt: skip
        return replace(state, played=played)

    def climb(self, state: PlayerState, lam: Array, key: Array) -> tuple[PlayerState, dict[str, Array]]:
        """One step of Adam each of pi and V, on a minibatch of what was played; lam: (I,)."""
        played = state.played
        lean = played.advantages @ jnp.append(1.0, -lam)
        lean = lean / (jnp.sqrt(jnp.average(lean**2, weights=played.alive)) + 1e-9)
        own = jax.random.randint(key, (self.rows,), 0, len(lean))
        s, a, weight = played.states[own], played.actions[own], played.alive[own]

        def loss(policy: PolicyNetwork) -> Array:
            moved = policy.log_drawn(s[:, :-1], a) - played.known[own]
            ratio = jnp.exp(jnp.clip(moved, -5.0, 5.0))
            gain = jnp.minimum(ratio * lean[own], jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * lean[own])
            held = self.anchor_weight * policy.divergence(state.anchor, s[:, :-1])
            return jnp.mean(weight * (held - gain))

        def error(critic: MLP) -> Array:
            return jnp.mean(weight[:, None] * (critic(s) - played.to_go[own] / played.size) ** 2)

        of_pi, grads = jax.value_and_grad(loss)(state.policy)
        updates, opt = self._adam.update(grads, state.opt)
        of_v, grads = jax.value_and_grad(error)(state.critic)
        moves, critic_opt = optax.adam(self.critic_rate).update(grads, state.critic_opt)
        state = replace(
            state, policy=optax.apply_updates(state.policy, updates), opt=opt,
            critic=optax.apply_updates(state.critic, moves), critic_opt=critic_opt,
        )  # fmt: skip
        return state, {"loss/pi": of_pi, "loss/V": of_v}
