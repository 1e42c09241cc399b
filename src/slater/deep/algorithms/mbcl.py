"""MBCL with function approximation: batch policy learning under constraints (Le, Voloshin and Yue, 2019).

A game in rounds t = 1..T, in which lambda moves first; for discrete actions (`slater.tabular.mbcl` is its
exact form):

    pi_t         greedy in Q, by fitted Q iteration on R - lambda.C:  Q <- R - lambda.C + gamma max_a Q'(s',a)
    J_t          fitted Q evaluation of pi_t, from scratch, for the reward and each cost:  h(s0, pi_t)
    lambda_t+1   exponentiated gradient on the relative excess (J_C - tau) / tau, with a slack entry, sum B
    output       the uniform mixture of pi_1, ..., pi_T

Regressions are gradient steps on target networks that follow slowly (`slater.deep.ope.fitted_q.FittedQ`),
with networks, or with features = "linear": one weight per action and entry of the observation, and a
constant.
Q is carried from round to round, since lambda moves little; the estimate is not, since the policy may jump.
The greedy policy is a softmax of Q / (sharpness H), nearly a jump, so that it is one network to export.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm, Config, Member, fit_phases
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch
from slater.deep.game.dual import DualState, ExponentiatedGradient, relative_excess
from slater.deep.nets.critic import Critic, make_critic
from slater.deep.nets.policy import Categorical, PolicyNetwork
from slater.deep.ope.fitted_q import FittedQ
from slater.deep.task import Task
from slater.errors import InputError


@dataclass(frozen=True)
class MBCLConfig(Config):
    """Settings of MBCL."""

    steps: int = 60_000
    """gradient iterations in all: the default is a first FQI and about 20 rounds"""
    features: Literal["network", "linear"] = "network"
    """what Q and h are: networks of width `hidden`, or linear in the observation, per action"""
    eta: float = 1e-3
    """learning rate of Q and h"""
    polyak: float = 0.02
    """rate of their target networks, per iteration"""
    deflation: float = 0.01
    """rate at which the level of Q and h is solved for, per iteration; 0 leaves it to the targets"""
    first_steps: int = 5_000
    """iterations of FQI before the first round, which starts from nothing"""
    fqi_steps: int = 1_000
    """iterations of FQI per round"""
    fqe_steps: int = 1_750
    """iterations of FQE per round"""
    multiplier_bound: float = 5.0
    """bound on the sum of multipliers, for rewards and costs scaled to [0, 1]"""
    dual_rate: float = 0.5
    """step of the exponents for an estimate of twice the limit or more"""
    dual_start: float = 1.0
    """sum of the multipliers in the first round"""
    sharpness: float = 1e-4
    """temperature of the greedy policy, as a share of the range of Q"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive(
            "eta", "polyak", "fqi_steps", "fqe_steps", "multiplier_bound", "dual_rate", "sharpness"
        )
        if self.first_steps < 0:
            raise InputError(f"first_steps must be at least 0, not {self.first_steps}.")


class MBCLState(eqx.Module):
    """Q with its target; h for (reward, costs) with targets; pi's temperature is in `scale`, a scalar.

    estimate: (1+I,) mean of h(s0, pi) over the end of a round's FQE, J-units of the scaled utilities.
    lam_mean: (I,) mean of the multipliers of the rounds so far.
    """

    q: Critic
    q_target: Critic
    h: tuple[Critic, ...]
    h_target: tuple[Critic, ...]
    opt_q: Any
    opt_h: Any
    scale: Array
    dual: DualState
    estimate: Array
    lam_mean: Array


@register
class MBCL(Algorithm[MBCLConfig, MBCLState]):
    """Fitted Q iteration and evaluation against exponentiated gradient; see the module's text."""

    name: ClassVar[str] = "mbcl"
    label: ClassVar[str] = "MBCL"
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {"multiplier_bound": ("2", "5", "10")}
    Config: ClassVar[type[Config]] = MBCLConfig
    actions: ClassVar[tuple[Literal["continuous", "discrete"], ...]] = ("discrete",)

    def __init__(self, config: MBCLConfig) -> None:
        super().__init__(config)
        self.fitted = FittedQ(config.eta, config.polyak, config.deflation)
        self.dual = ExponentiatedGradient(config.multiplier_bound, config.dual_rate, config.dual_start)

    # -- the schedule -------------------------------------------------------------------------------------

    def config_for(self, dataset: Dataset | StoredDataset) -> MBCLConfig:
        """Phases short enough for four rounds within `steps`."""
        config = self.config
        phases = {name: getattr(config, name) for name in ("first_steps", "fqi_steps", "fqe_steps")}

        def needed(phases: Mapping[str, Any]) -> int:
            return phases["first_steps"] + 4 * (phases["fqi_steps"] + phases["fqe_steps"])

        return replace(config, **fit_phases(self.name, config.steps, phases, needed))

    def _place(self, done: int) -> tuple[int, int]:
        """Rounds finished after `done` iterations, and iterations into the next one."""
        return divmod(done - self.config.first_steps, self.config.fqi_steps + self.config.fqe_steps)

    def phase(self, step: int) -> tuple[str, int]:
        """FQI alone at first, then rounds of FQI and FQE."""
        config = self.config
        if step < config.first_steps:
            return "fqi", min(config.first_steps, config.steps)
        _, place = self._place(step)
        if place < config.fqi_steps:
            return "fqi", min(step - place + config.fqi_steps, config.steps)
        return "fqe", min(step - place + config.fqi_steps + config.fqe_steps, config.steps)

    def keeps(self, done: int) -> bool:
        """At the end of each round."""
        rounds, place = self._place(done)
        return place == 0 and rounds >= 1

    # -- the game -----------------------------------------------------------------------------------------

    def _critics(self, task: Task, key: Array, count: int) -> tuple[Critic, ...]:
        hidden = self.config.hidden if self.config.features == "network" else ()
        return tuple(make_critic(task, hidden, k) for k in jax.random.split(key, count))

    def init(self, task: Task, key: Array) -> MBCLState:
        """Networks at random, lambda at its start."""
        key_q, key_h = jax.random.split(key)
        (q,), h = self._critics(task, key_q, 1), self._critics(task, key_h, 1 + task.costs)
        dual = self.dual.init(task.costs)
        return MBCLState(
            q=q, q_target=q, h=h, h_target=h, opt_q=self.fitted.adam.init((q,)),
            opt_h=self.fitted.adam.init(h), scale=self._scale(task, dual.lam), dual=dual,
            estimate=jnp.zeros(1 + task.costs), lam_mean=jnp.zeros(task.costs),
        )  # fmt: skip

    def update(
        self, task: Task, state: MBCLState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[MBCLState, dict[str, Array]]:
        """One iteration of FQI or of FQE, and lambda's move at the end of a round."""
        metrics: dict[str, Array]
        if phase == "fqi":
            state, loss = self._iterate(task, state, batch)
            metrics = {"loss/q": loss}
        else:
            state, losses = self._evaluate(task, state, batch, key, step)
            names = ("reward", *task.cost_names)
            metrics = {f"loss/h_{name}": value for name, value in zip(names, losses, strict=True)}
            metrics |= {f"ope/{name}": state.estimate[u] / task.scale[u] for u, name in enumerate(names)}
        metrics |= {f"lambda/{name}": state.dual.lam[i] for i, name in enumerate(task.cost_names)}
        return state, metrics

    def _iterate(self, task: Task, state: MBCLState, batch: Batch) -> tuple[MBCLState, Array]:
        """FQI: the regression of FQE with the utility R - lambda.C and the action that is best now."""
        lam = state.dual.lam
        low, high = self._range(task, lam)
        game = replace(task, value_low=low[None], value_high=high[None])  # type: ignore[arg-type]
        utility = batch.u[:, :1] - batch.u[:, 1:] @ lam[:, None]
        best = jax.nn.one_hot(jnp.argmax(state.q_target.mlp(batch.s_next), axis=-1), task.action_dim)
        before, rows = ((state.q,), (state.q_target,), state.opt_q), batch._replace(u=utility)
        ((q,), (target,), opt), losses = self.fitted.update(game, [0], before, rows, best)
        return replace(state, q=q, q_target=target, opt_q=opt, scale=self._scale(task, lam)), losses[0]

    def _evaluate(
        self, task: Task, state: MBCLState, batch: Batch, key: Array, step: Array
    ) -> tuple[MBCLState, Array]:
        """FQE of the greedy policy, from scratch at a round's start; lambda moves at its end."""
        config = self.config
        place = (step - config.first_steps) % (config.fqi_steps + config.fqe_steps) - config.fqi_steps

        def fresh() -> tuple[Any, ...]:
            h = self._critics(task, jax.random.fold_in(key, 1), 1 + task.costs)
            return h, h, self.fitted.adam.init(h)

        before = (state.h, state.h_target, state.opt_h)
        before = jax.lax.cond(place == 0, fresh, lambda: before)
        pi, utilities = self.policy(state), range(1 + task.costs)
        a_next = pi.choice(batch.s_next, key)
        (h, target, opt), losses = self.fitted.update(task, utilities, before, batch, a_next)
        pi_initial = pi.choice(batch.s0, key)
        now = jnp.stack([jnp.mean(critic(batch.s0, pi_initial)) for critic in target])
        # a mean over about the last eighth of the round's FQE
        estimate = state.estimate + min(8.0 / config.fqe_steps, 1.0) * (now - state.estimate)
        excess = relative_excess(estimate[1:], jnp.asarray(task.tau), 1e-3 / (1.0 - task.gamma))
        ends = place == config.fqe_steps - 1
        moved = self.dual.update(state.dual, excess)
        dual = jax.tree.map(lambda new, old: jnp.where(ends, new, old), moved, state.dual)
        rounds = (step + 1 - config.first_steps) // (config.fqi_steps + config.fqe_steps)
        mean = state.lam_mean + (state.dual.lam - state.lam_mean) / jnp.maximum(rounds, 1)
        state = replace(
            state, h=h, h_target=target, opt_h=opt, dual=dual, estimate=estimate,
            lam_mean=jnp.where(ends, mean, state.lam_mean),
        )  # fmt: skip
        return state, losses

    def _range(self, task: Task, lam: Array) -> tuple[Array, Array]:
        """The least and the largest discounted sum of R - lambda.C."""
        low, high = jnp.asarray(task.value_low), jnp.asarray(task.value_high)
        return low[0] - lam @ high[1:], high[0] - lam @ low[1:]

    def _scale(self, task: Task, lam: Array) -> Array:
        """What Q is multiplied by in the greedy policy's softmax."""
        low, high = self._range(task, lam)
        return 1.0 / (self.config.sharpness * jnp.maximum(high - low, 1e-6))

    # -- the output ---------------------------------------------------------------------------------------

    def policy(self, state: MBCLState) -> PolicyNetwork:
        """The greedy policy of the target network: its last layer, sharpened."""
        mlp = state.q_target.mlp
        last = (mlp.weights[-1], mlp.biases[-1])
        # a constant in all actions changes nothing; without the mean, rounding is smaller
        sharp = tuple(state.scale * (x - jnp.mean(x, axis=-1, keepdims=True)) for x in last)
        return Categorical(eqx.tree_at(lambda m: (m.weights[-1], m.biases[-1]), mlp, sharp))

    def estimates(self, task: Task, state: MBCLState) -> tuple[float, ...] | None:
        """The round's FQE, reward first."""
        return tuple(float(x) for x in state.estimate)

    def report(
        self, task: Task, state: MBCLState, members: Sequence[Member], weights: NDArray[np.float64]
    ) -> dict[str, Any]:
        """The mean multipliers, per raw unit of reward and cost."""
        lam = np.asarray(state.lam_mean, dtype=np.float64) * task.scale[1:] / task.scale[0]
        return {"lambda_mean": dict(zip(task.cost_names, lam.tolist(), strict=True))}
