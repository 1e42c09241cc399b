"""PDCA as we recommend it: the game of Algorithm 2 with parts that work on networks, played from the log.

The game and its letters are in `paper.py`. The default keeps the game and changes its parts where trials
showed that they fail on networks:

    log model  before the game the log is fitted, once for all runs on it: its behaviours, their clones and
               other candidates, its dynamics (`slater.deep.log_model`)
    start      the log's candidate that is best at the limits' prices, and those prices as multipliers; then
               the one that is best at the multipliers so far; the game goes on where the second ended
    rounds     Algorithm 1's order: iterations of the policy and its critics, then OPE of that policy, then
               one step of lambda; in closed loop a late or biased estimator is the whole error (`schedule`)
    primal     mirror descent in the log model (`slater.deep.game.player`), where 2E + A is A: the policy is
               held to its start, where the model can be believed
    estimator  rollouts of whole episodes in the log model, in the unit of the limit
    dual       exponentiated gradient on the relative excess
    output     the mixture that a cone program finds among the log's candidates and the game's policies, on
               the joint posterior of what they are worth (`slater.deep.ope.posterior`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm, Config, Member, fit_phases
from slater.deep.algorithms.pdca.config import PDCAConfig
from slater.deep.algorithms.pdca.output import LADDER, STARTS, PosteriorProgram, certificate
from slater.deep.algorithms.pdca.paper import PaperPDCA
from slater.deep.algorithms.pdca.schedule import Schedule
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, Data
from slater.deep.compiled import quick_draws
from slater.deep.game.dual import DualState, ExponentiatedGradient, Outcome
from slater.deep.game.player import ModelPlayer, PlayerState
from slater.deep.log_model.clones import CLONE_LOG_STD
from slater.deep.log_model.dynamics import Dynamics, random_dynamics
from slater.deep.log_model.log_model import hidden_for, levels_for
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Check, Tick
from slater.deep.ope.rollouts import values_of
from slater.deep.task import Task
from slater.limit_status import LimitStatus

__all__ = ["PDCA", "PDCAState"]

#: rounds from each start of the game
START_ROUNDS = 4
#: sum of the multipliers before anything is known
DUAL_START = 1.0


class PDCAState(eqx.Module):
    """Everything that changes, and what the log model gave:

    dynamics: in which the game is played
    player: pi, what it is held to and its critics; dual: lambda
    candidates: of the log, best at one price or another, leaves with an axis S first; values: (S, 1+I) of J
    price_unit: (I,) what lambda is a multiple of
    aim: (I,) costs that lambda steers to, in J-units
    multiplier_mean: (I,) mean of the multipliers played, lambda_bar of the paper
    estimate: (1+I,) the last estimate of J(pi), in J-units of the scaled utilities
    """

    dynamics: Dynamics
    player: PlayerState
    dual: DualState
    candidates: PolicyNetwork
    values: Array
    price_unit: Array
    aim: Array
    multiplier_mean: Array
    estimate: Array


@register
class PDCA(Algorithm[PDCAConfig, PDCAState]):
    """The default; see the module's text."""

    name: ClassVar[str] = "pdca"
    label: ClassVar[str] = "PDCA"
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "multiplier_bound": ("2", "5", "10"), "anchor_weight": ("0.03", "0.1")
    }  # fmt: skip
    limits_are_tau: ClassVar[bool] = True
    remedy: ClassVar[str] = "Lower player_rate or eta_fast, or raise anchor_weight."
    Config: ClassVar[type[Config]] = PDCAConfig
    variants: ClassVar[Mapping[str, type[Algorithm[Any, Any]]]] = dict.fromkeys(PaperPDCA.presets, PaperPDCA)

    def __init__(self, config: PDCAConfig) -> None:
        """Put the parts together."""
        super().__init__(config)
        c, self.log_model = config, config.log_model()
        # the policy's networks and noise are those of the log's clones, at which it starts
        self.player = ModelPlayer(
            c.hidden, c.player_rate, c.eta_fast, CLONE_LOG_STD, c.components,
            self.log_model.dynamics.networks // 2, 2 * c.batch_size, c.anchor_weight,
        )  # fmt: skip
        self.dual = ExponentiatedGradient(c.multiplier_bound, c.dual_rate, DUAL_START)
        self.output = PosteriorProgram(self.log_model, c.confidence)
        self.schedule = Schedule(c.joint_steps, START_ROUNDS, STARTS)

    def config_for(self, dataset: Dataset | StoredDataset) -> PDCAConfig:
        """The settings with what the data decide, and rounds short enough for one part within `steps`."""
        c = self.config
        rounds = fit_phases(
            self.name, c.steps, {"joint_steps": c.joint_steps},
            lambda phases: Schedule(phases["joint_steps"], START_ROUNDS).part_length,
        )  # fmt: skip
        return replace(
            c, **rounds,
            levels=levels_for(dataset) if c.levels is None else c.levels,
            model_hidden=hidden_for(dataset, c.hidden) if c.model_hidden is None else c.model_hidden,
        )  # fmt: skip

    def phase(self, step: int) -> tuple[str, int]:
        """As the schedule says."""
        return self.schedule.phase(step)

    # -- the game -----------------------------------------------------------------------------------------

    def init(self, task: Task, key: Array) -> PDCAState:
        """A policy at random, lambda at its start, and room for what comes with `prepared`."""
        *_, key_pi = jax.random.split(key, 4)

        def empty(like: Any, *axis: int) -> Any:
            return jax.tree.map(lambda x: jnp.zeros((*axis, *x.shape), x.dtype), like)

        player = self.player.init(task, key_pi)
        return PDCAState(
            dynamics=empty(jax.eval_shape(lambda: random_dynamics(task, self.log_model.dynamics))),
            player=player,
            dual=self.dual.init(task.costs),
            candidates=empty(player.policy, len(LADDER)),
            values=jnp.zeros((len(LADDER), 1 + task.costs)),
            price_unit=jnp.ones(task.costs),
            aim=jnp.array(task.tau),
            multiplier_mean=jnp.zeros(task.costs),
            estimate=jnp.zeros(1 + task.costs),
        )

    def prepared(
        self, task: Task, state: PDCAState, dataset: Dataset | StoredDataset, tick: Tick
    ) -> PDCAState:
        """With candidates, prices, what to aim at and the dynamics from the log model."""
        found = self.output.starts(task, dataset, tick)
        prices, unit, aim, values = (
            jnp.asarray(x, jnp.float32) for x in (found.prices, found.unit, found.aim, found.values)
        )
        lam = jnp.clip(prices / unit, 1e-3, 0.9 * self.config.multiplier_bound)
        state = replace(
            state, dynamics=found.dynamics, candidates=found.policies, values=values, price_unit=unit,
            aim=aim, dual=self.dual.restart(state.dual, lam),
        )  # fmt: skip
        # buffers of its own: a chunk reuses those of its state, and the log model stays
        return jax.tree.map(jnp.array, state)

    def update(
        self, task: Task, state: PDCAState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[PDCAState, dict[str, Array]]:
        """One iteration: what moves in this phase."""
        metrics, key = dict[str, Array](), quick_draws(key)
        if phase == "start":  # pi <- a candidate of the log; lambda <- its price
            return self._started(state, step), metrics
        if phase == "play":  # episodes of pi in the model of one half of the log
            half = self.schedule.half(step)
            player = self.player.play(task, state.player, state.dynamics, half, batch.s0, key)
            state = replace(state, player=player)
        if phase == "climb":  # pi climbs f - sum_i lambda_i g^i, by what was played
            player, metrics = self.player.climb(state.player, state.dual.lam * state.price_unit, key)
            state = replace(state, player=player)
        if phase == "ope":  # h(s0, pi) by every network of the model; lambda moves by h - tau
            key_first, key_dual = jax.random.split(key)
            h = values_of(task, state.dynamics, state.player.policy, batch.s0, key_first)
            estimate = jnp.mean(h, axis=0)
            outcome = Outcome(estimate[0], estimate[1:], state.aim, 1e-3 / (1.0 - task.gamma))
            # lambda_bar is over the multipliers that were played, before this move
            played, mean = state.dual.lam * state.price_unit, state.multiplier_mean
            mean = mean + (played - mean) / self.schedule.rounds_over(step)
            dual = self.dual.respond(state.dual, outcome, key_dual)
            state = replace(state, dual=dual, multiplier_mean=mean, estimate=estimate)
        return state, metrics | _of_game(task, state)

    def _started(self, state: PDCAState, step: Array) -> PDCAState:
        """The policy at the start of the part that begins with iteration `step`: at the candidate of the log
        that is best at lambda, or, when all starts were had, where it is; and held to that.
        """
        worth = state.values @ jnp.append(1.0, -state.dual.lam * state.price_unit)
        fresh = self.schedule.part(step) == self.schedule.start(step)
        policy = jax.tree.map(
            lambda leaf, own: jnp.where(fresh, leaf[jnp.argmax(worth)], own),
            state.candidates, state.player.policy,
        )  # fmt: skip
        return replace(state, player=self.player.start(state.player, policy))

    # -- the output ---------------------------------------------------------------------------------------

    def policy(self, state: PDCAState) -> PolicyNetwork:
        """The state's pi."""
        return state.player.policy

    def keeps(self, done: int) -> bool:
        """At the end of each round."""
        return self.schedule.ends_round(done)

    def estimates(self, task: Task, state: PDCAState) -> tuple[float, ...]:
        """The last estimate of J(pi), reward first."""
        del task
        return tuple(float(x) for x in state.estimate)

    def check_estimates(self, task: Task, state: PDCAState, dataset: Dataset | StoredDataset) -> Check:
        """The output's last look at the data."""
        del state
        return self.output.check(task, dataset)

    def weigh(
        self, task: Task, state: PDCAState, data: Data, members: Sequence[Member],
        policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """Weights over the members, as the output says."""
        del state, data, key
        half = {m.step: int(self.schedule.half(m.step - 1)) for m in members}
        return self.output.weights(task, members, policies, half, tick, check)

    def limit_status(
        self, task: Task, members: Sequence[Member], weights: NDArray[np.float64], check: Check
    ) -> Sequence[LimitStatus] | None:
        """As the output says."""
        del members
        return self.output.limit_status(task, weights, check)

    def report(
        self, task: Task, state: PDCAState, members: Sequence[Member], weights: NDArray[np.float64]
    ) -> dict[str, Any]:
        """The `certificate`."""
        return certificate(task, self.config.multiplier_bound, state.multiplier_mean, members, weights)


def _of_game(task: Task, state: PDCAState) -> dict[str, Array]:
    """The multipliers, estimates and slack to log, in the data's units."""
    metrics = {"ope/reward": state.estimate[0] / task.scale[0]}
    for i, name in enumerate(task.cost_names):
        h = state.estimate[1 + i]
        metrics[f"lambda/{name}"] = state.dual.lam[i] * state.price_unit[i]
        metrics[f"ope/{name}"] = h / task.scale[1 + i]
        metrics[f"slack/{name}"] = (task.tau[i] - h) / task.scale[1 + i]
    return metrics
