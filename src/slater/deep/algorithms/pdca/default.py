"""PDCA as we recommend it: the game of Algorithm 2 with parts that work on networks, played from the log.

The game and its letters are in `paper.py`. The default keeps the game and changes its parts where trials
showed that they fail on networks:

    critics    E_D as a squared double-Q residual with target networks instead of the hinge
    rounds     Algorithm 1's order: joint iterations of critics and policy, then OPE of that policy, then one
               step of lambda; in closed loop a late or biased estimator is the whole error (`schedule.py`)
    log model  before the game the log is fitted, once for all runs on it: its behaviours, their clones and
               other candidates, its dynamics (`slater.deep.log_model`)
    estimator  rollouts of whole episodes in the log model, in the unit of the limit; for one-hot
    observations,
               FQE from scratch in every round
    start      the log's candidates that are best at the limits' prices, one after the other, and those prices
               as multipliers; critics regressed on the data's returns
    primal     mirror descent from the start: the policy stays where critics and estimates can be believed;
               for one-hot observations and discrete actions the natural gradient, whose logits cannot die
    dual       exponentiated gradient on the relative excess
    output     the mixture that a cone program finds among the log's candidates and the game's policies, on
    the
               joint posterior of what they are worth (`slater.deep.ope.posterior`)

Every part is an object behind the interface of its family, chosen by name in `parts.py`.
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
from slater.deep.algorithms.base import Algorithm, Config, Member, fit_phases, fit_preparation
from slater.deep.algorithms.pdca import parts
from slater.deep.algorithms.pdca.config import PDCAConfig
from slater.deep.algorithms.pdca.output import certificate
from slater.deep.algorithms.pdca.paper import PaperPDCA
from slater.deep.algorithms.pdca.schedule import MOVES, Schedule
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, Data, draw_keys
from slater.deep.game.critics import CriticsState
from slater.deep.game.dual import DualState, Outcome
from slater.deep.game.primal import PrimalState
from slater.deep.log_model.log_model import has_levels, hidden_for, suits_a_model
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Check, Tick
from slater.deep.task import Task
from slater.limit_status import LimitStatus

__all__ = ["PDCA", "PDCAState"]

#: settings that are lengths of phases
PHASES = ("warm_steps", "joint_steps", "ope_steps")


#: what the prices of the limits are multiplied by at the starts, cycle after cycle of them; and the least of
#: them, since a limit that does not bind at the log's mixture may bind later
PRICE_SHARES, LEAST_PRICE = (1.0, 1.0 / 3.0, 3.0), 0.01


def _chosen(config: PDCAConfig, estimator: str, discrete: bool) -> PDCAConfig:
    """The settings with a part for every `auto`: `estimator` suits the data, whose actions are `discrete` or
    not.
    """
    if config.estimator == "auto":
        asks = config.mixture in ("auto", "posterior")
        config = replace(config, estimator=estimator if asks else "fqe")
    with_log = config.estimator == "rollouts"
    if config.mixture == "auto":
        config = replace(config, mixture="posterior" if with_log else "lp")
    if config.primal == "auto":
        natural = "natural" if discrete and config.temperature > 0 else "gradient"
        config = replace(config, primal="anchored" if with_log else natural)
    if config.dual == "auto":
        from_log = config.primal == "anchored"
        config = replace(config, dual="exponentiated_gradient" if from_log else "projected_gradient")
    return config


class PDCAState(eqx.Module):
    """Everything that changes: the state of every part, and

    starts: candidates that the game is played from, leaves with an axis S first; () where it has no parts
    start_prices: (I,) of the limits there
    multiplier_mean: (I,) mean of the multipliers played, lambda_bar of the paper
    estimate: (1+I,) the last pessimistic estimate of J(pi), in J-units of the scaled utilities
    """

    critics: CriticsState
    estimator: Any
    primal: PrimalState
    dual: DualState
    starts: Any
    start_prices: Array
    multiplier_mean: Array
    estimate: Array


@register
class PDCA(Algorithm[PDCAConfig, PDCAState]):
    """The default; see the module's text."""

    name: ClassVar[str] = "pdca"
    label: ClassVar[str] = "PDCA"
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = PaperPDCA.search_space
    limits_are_tau: ClassVar[bool] = True
    remedy: ClassVar[str] = PaperPDCA.remedy
    Config: ClassVar[type[Config]] = PDCAConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fqe": {"estimator": "fqe", "joint_steps": 1_000, "steps": 37_000},
    }
    variants: ClassVar[Mapping[str, type[Algorithm[Any, Any]]]] = dict.fromkeys(PaperPDCA.presets, PaperPDCA)

    def __init__(self, config: PDCAConfig) -> None:
        """Put the parts together; what is `auto` is what suits continuous data until `config_for`."""
        super().__init__(config)
        chosen = _chosen(config, "rollouts", discrete=False)
        self.critics = parts.CRITICS[config.critic](config)
        self.estimator = parts.ESTIMATORS[chosen.estimator](config)
        self.primal = parts.PRIMALS[chosen.primal](config)
        self.dual = parts.DUALS[chosen.dual](config)
        self.output = parts.OUTPUTS[chosen.mixture](config)
        self.schedule = Schedule(
            config.steps, config.warm_steps, self.estimator.fit_steps, config.joint_steps,
            self.estimator.policy_steps, config.start_rounds if chosen.primal == "anchored" else 0,
        )  # fmt: skip

    def config_for(self, dataset: Dataset | StoredDataset) -> PDCAConfig:
        """The settings with what is `auto` decided by the data, and phases that fit into steps."""
        chosen = _chosen(self.config, "rollouts" if suits_a_model(dataset) else "fqe", dataset.discrete)
        if chosen.levels is None and chosen.estimator == "rollouts":
            chosen = replace(chosen, levels=has_levels(dataset))
        if chosen.model_hidden is None:
            chosen = replace(chosen, model_hidden=hidden_for(dataset, chosen.hidden))
        return self._shortened(chosen)

    @classmethod
    def _shortened(cls, config: PDCAConfig) -> PDCAConfig:
        """The settings, with phases small enough for four rounds within `steps`; themselves if they fit."""
        if not cls(config).schedule.in_rounds:
            return replace(config, warm_steps=fit_preparation(config.warm_steps, config.steps))

        def needed(phases: Mapping[str, Any]) -> int:
            schedule = cls(replace(config, **phases)).schedule
            return schedule.begins + max(4 * schedule.round_length, schedule.part_length)

        phases = {name: getattr(config, name) for name in PHASES}
        return replace(config, **fit_phases(cls.name, config.steps, phases, needed))

    def phase(self, step: int) -> tuple[str, int]:
        """As the schedule says."""
        return self.schedule.phase(step)

    # -- the game -----------------------------------------------------------------------------------------

    def init(self, task: Task, key: Array) -> PDCAState:
        """All networks at random, lambda at its start."""
        key_f, key_g, key_h, key_pi = jax.random.split(key, 4)
        return PDCAState(
            critics=self.critics.init(task, key_f, key_g),
            estimator=self.estimator.init(task, key_h),
            primal=self.primal.init(task, key_pi),
            dual=self.dual.init(task.costs),
            starts=self._random_starts(task, key_pi),
            start_prices=jnp.zeros(task.costs),
            multiplier_mean=jnp.zeros(task.costs),
            estimate=jnp.zeros(1 + task.costs),
        )

    @property
    def _parts(self) -> int:
        """S, the number of policies that the game is played from; 0: it has no parts."""
        return self.config.starts if self.schedule.part_length else 0

    def _random_starts(self, task: Task, key: Array) -> Any:
        if not self._parts:
            return ()
        return jax.vmap(lambda k: self.primal.init(task, k).policy)(jax.random.split(key, self._parts))

    def prepared(
        self, task: Task, state: PDCAState, dataset: Dataset | StoredDataset, tick: Tick
    ) -> PDCAState:
        """With starts, prices and the estimator's networks from the log model, if there is one."""
        found = self.output.starts(task, dataset, max(self._parts, 1), tick)
        if found is None:
            return state
        state = replace(state, estimator=self.estimator.studied(state.estimator, found.dynamics))
        if self._parts:
            prices = jnp.asarray(found.prices, jnp.float32)
            state = replace(state, starts=found.policies, start_prices=prices)
        # buffers of its own: a chunk reuses those of its state, and the log model stays
        return jax.tree.map(jnp.array, state)

    def update(
        self, task: Task, state: PDCAState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[PDCAState, dict[str, Array]]:
        """One iteration: the parts that move in this phase, each after those it depends on."""
        moves = MOVES[phase]
        metrics: dict[str, Array] = {}
        critics, estimator, primal = state.critics, state.estimator, state.primal
        dual, mean, estimate = state.dual, state.multiplier_mean, state.estimate
        if "start" in moves:  # pi <- a candidate of the log; lambda <- its price
            primal, dual = self._start(state, step)
        if "warm start" in moves:  # f, g <- the data's returns; pi <- the data's policy
            critics, of_critics = self.critics.warm(task, critics, batch)
            primal, of_primal = self.primal.warm(primal, batch)
            metrics |= of_critics | of_primal
        if "fit" in moves:  # what OPE learns once
            estimator, told = self.estimator.fit(task, estimator, batch, key)
            metrics |= told
        if "critics" in moves:  # 2 E + A, 2 E - A
            critics, told = self.critics.update(task, critics, primal.policy, batch, key)
            metrics |= told
        if "estimator" in moves:  # OPE of this policy
            place = self.schedule.place_in_ope(step)
            estimator, told = self.estimator.update(task, estimator, primal.policy, batch, key, place)
            metrics |= told
        if "primal" in moves:  # pi climbs f + sum_i lambda_i (tau_i - g^i)
            z = self.critics.lagrangian(task, critics, dual.lam, batch)
            primal, told = self.primal.update(task, primal, z, batch, key)
            metrics |= told
        if "dual" in moves:  # lambda, by h(s0, pi) - tau
            key_first = draw_keys(key).s0
            estimate = self.estimator.value(task, estimator, primal.policy, batch.s0, key_first).pessimistic
            dual, mean = self._respond(task, state, estimate, key_first, step)
        state = replace(
            state, critics=critics, estimator=estimator, primal=primal, dual=dual, multiplier_mean=mean,
            estimate=estimate,
        )  # fmt: skip
        return state, metrics | (_of_game(task, state) if "critics" in moves or "dual" in moves else {})

    def _start(self, state: PDCAState, step: Array) -> tuple[PrimalState, DualState]:
        """The players at the start of the part that begins with iteration `step`."""
        part, count = self.schedule.part(step), self._parts
        policy = jax.tree.map(lambda leaf: leaf[part % count], state.starts)
        share = jnp.array(PRICE_SHARES)[(part // count) % len(PRICE_SHARES)]
        prices = jnp.clip(state.start_prices * share, LEAST_PRICE, 0.9 * self.config.multiplier_bound)
        return self.primal.start(policy), self.dual.restart(state.dual, prices)

    def _respond(
        self, task: Task, state: PDCAState, estimate: Array, key: Array, step: Array
    ) -> tuple[DualState, Array]:
        """The lambda-player's move, if its round is over, and the mean of the multipliers played so far."""
        limits = jnp.asarray(task.tightened_limits(self.config.margin))
        outcome = Outcome(estimate[0], estimate[1:], limits, 1e-3 / (1.0 - task.gamma))
        moved = self.dual.respond(state.dual, outcome, key)
        moves_now, rounds = self.schedule.moves_dual(step)
        dual = jax.tree.map(lambda new, old: jnp.where(moves_now, new, old), moved, state.dual)
        # lambda_bar is over the multipliers that were played, before this move
        mean = state.multiplier_mean + (state.dual.lam - state.multiplier_mean) / jnp.maximum(rounds, 1)
        return dual, jnp.where(moves_now, mean, state.multiplier_mean)

    # -- the output ---------------------------------------------------------------------------------------

    def policy(self, state: PDCAState) -> PolicyNetwork:
        """The state's pi."""
        return state.primal.policy

    def keeps(self, done: int) -> bool:
        """At the end of each round; without rounds, at the interval."""
        return self.schedule.ends_round(done) if self.schedule.in_rounds else super().keeps(done)

    def estimates(self, task: Task, state: PDCAState) -> tuple[float, ...]:
        """The pessimistic estimate of J(pi), reward first."""
        del task
        return tuple(float(x) for x in state.estimate)

    def check_estimates(self, task: Task, state: PDCAState, dataset: Dataset | StoredDataset) -> Check:
        """The output's last look at the data."""
        return self.output.check(task, self.estimator, state.estimator, dataset)

    def weigh(
        self, task: Task, state: PDCAState, data: Data, members: Sequence[Member],
        policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """Weights over the members, as the output says."""
        return self.output.weights(
            task, self.estimator, state.estimator, data, members, policies, key, tick, check
        )

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
        metrics[f"lambda/{name}"] = state.dual.lam[i]
        metrics[f"ope/{name}"] = h / task.scale[1 + i]
        metrics[f"slack/{name}"] = (task.tau[i] - h) / task.scale[1 + i]
    return metrics
