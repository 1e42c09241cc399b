"""PDCA as we recommend it: the game of Algorithm 2 with parts that work on networks.

The game and its letters are in `paper.py`. The default keeps the game and changes its parts where trials
showed that they fail on networks:

    critics    E_D as a squared double-Q residual with target networks instead of the hinge
    rounds     Algorithm 1's order: joint iterations of critics and policy, then OPE of that policy, then one
               step of lambda; in closed loop a late or biased estimator is the whole error (`schedule.py`)
    estimator  rollouts in a model that is fitted to the data first (`slater.deep.ope.model`): whole episodes,
               in the unit of the limit; for one-hot observations, FQE from scratch in every round
    start      a cloned policy, and critics regressed on the data's returns
    primal     for discrete actions the natural gradient: logits follow the advantage and cannot die
    dual       projected gradient on the relative excess
    output     the mixture that a linear program finds among the kept policies, by a careful estimate of each
               (`slater.mixing`); swinging iterates are good columns, and a clone of the best of the data's
               safe part is one more (`fallback.py`)

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
from slater.deep.algorithms.pdca.output import Bounds
from slater.deep.algorithms.pdca.paper import PaperPDCA
from slater.deep.algorithms.pdca.schedule import MOVES, Schedule
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, Data, draw_keys
from slater.deep.game.critics import CriticsState
from slater.deep.game.dual import DualState, Outcome
from slater.deep.game.primal import PrimalState
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Check, Tick
from slater.deep.ope.model import suits_a_model
from slater.deep.task import Task

__all__ = ["PDCA", "PDCAState"]

#: settings that are lengths of phases
PHASES = ("warm_steps", "model_steps", "joint_steps", "ope_steps")


class PDCAState(eqx.Module):
    """Everything that changes: the state of every part, and

    multiplier_mean: (I,) mean of the multipliers played, lambda_bar of the paper
    estimate: (1+I,) the last pessimistic estimate of J(pi), in J-units of the scaled utilities
    """

    critics: CriticsState
    estimator: Any
    primal: PrimalState
    dual: DualState
    output: Any
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
        "cohorts": {"mixture": "bounds", "steps": 20_020},
    }
    variants: ClassVar[Mapping[str, type[Algorithm[Any, Any]]]] = dict.fromkeys(PaperPDCA.presets, PaperPDCA)

    def __init__(self, config: PDCAConfig) -> None:
        """Put the parts together; what is `auto` is what suits continuous data until `config_for`."""
        super().__init__(config)
        estimator, primal = (
            {"auto": "model"}.get(config.estimator, config.estimator),
            {"auto": "gradient"}.get(config.primal, config.primal),
        )
        self.critics = parts.CRITICS[config.critic](config)
        self.estimator = parts.ESTIMATORS[estimator](config)
        self.primal = parts.PRIMALS[primal](config)
        self.dual = parts.DUALS[config.dual](config)
        self.output = parts.OUTPUTS[config.mixture](config, self.estimator)
        self.schedule = Schedule(
            config.steps, config.warm_steps, self.estimator.fit_steps, config.joint_steps,
            self.estimator.policy_steps,
        )  # fmt: skip

    def config_for(self, dataset: Dataset | StoredDataset) -> PDCAConfig:
        """The estimator auto becomes fqe where observations are one-hot, else model; the primal player auto
        natural for discrete actions (with a temperature), else gradient; phases fit into steps.
        """
        config = self.config
        if config.estimator == "auto":
            config = replace(config, estimator="model" if suits_a_model(dataset) else "fqe")
        if config.primal == "auto":
            natural = dataset.discrete and config.temperature > 0
            config = replace(config, primal="natural" if natural else "gradient")
        return self._shortened(config)

    @classmethod
    def _shortened(cls, config: PDCAConfig) -> PDCAConfig:
        """The settings, with phases small enough for four rounds within `steps`; themselves if they fit."""
        if not cls(config).schedule.in_rounds:
            return replace(config, warm_steps=fit_preparation(config.warm_steps, config.steps))

        def needed(phases: Mapping[str, Any]) -> int:
            schedule = cls(replace(config, **phases)).schedule
            return schedule.start + 4 * schedule.round_length

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
            output=self.output.init(task, key_pi),
            multiplier_mean=jnp.zeros(task.costs),
            estimate=jnp.zeros(1 + task.costs),
        )

    def update(
        self, task: Task, state: PDCAState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[PDCAState, dict[str, Array]]:
        """One iteration: the parts that move in this phase, each after those it depends on."""
        moves = MOVES[phase]
        metrics: dict[str, Array] = {}
        critics, estimator, primal, output = state.critics, state.estimator, state.primal, state.output
        dual, mean, estimate = state.dual, state.multiplier_mean, state.estimate
        if "warm start" in moves:  # f, g <- the data's returns; pi <- the data's policy
            critics, of_critics = self.critics.warm(critics, batch)
            primal, of_primal = self.primal.warm(primal, batch)
            metrics |= of_critics | of_primal
        if "fit" in moves:  # what OPE learns once
            estimator, told = self.estimator.fit(task, estimator, batch, key)
            metrics |= told
        if "output" in moves:  # a policy beside the game
            output, told = self.output.update(task, output, batch, step)
            metrics |= told
        if "critics" in moves:  # 2 E + A, 2 E - A
            critics, told = self.critics.update(task, critics, primal.policy, batch, key)
            metrics |= told
        if "estimator" in moves:  # OPE of this policy
            place = self.schedule.place_in_ope(step)
            estimator, told = self.estimator.update(task, estimator, primal.policy, batch, key, place)
            metrics |= told
        if "primal" in moves:  # pi climbs f + sum_i lambda_i (tau_i - g^i)
            z = self.critics.lagrangian(task, critics, dual.lam)
            primal, told = self.primal.update(task, primal, z, batch, key)
            metrics |= told
        if "dual" in moves:  # lambda, by h(s0, pi) - tau
            key_first = draw_keys(key).s0
            estimate = self.estimator.value(task, estimator, primal.policy, batch.s0, key_first).pessimistic
            dual, mean = self._respond(task, state, estimate, key_first, step)
        state = PDCAState(critics, estimator, primal, dual, output, mean, estimate)
        return state, metrics | (_of_game(task, state) if "output" not in moves else {})

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
        """At the end of each round, and when the fallback is trained; without rounds, at the interval."""
        if not self.schedule.in_rounds:
            return super().keeps(done)
        return self.schedule.ends_round(done) or done == self.schedule.start

    def member(self, task: Task, state: PDCAState, step: int) -> tuple[PolicyNetwork, Member] | None:
        """The state's pi with its estimate; before the first round the fallback, which has none yet."""
        if self.schedule.in_rounds and step == self.schedule.start:
            fallback = self.output.fallback.policy(state.output)
            return None if fallback is None else (fallback, Member(step, kind="fallback"))
        return state.primal.policy, Member(step, self.estimates(task, state))

    def estimates(self, task: Task, state: PDCAState) -> tuple[float, ...]:
        """The pessimistic estimate of J(pi), reward first."""
        del task
        return tuple(float(x) for x in state.estimate)

    def check_estimates(self, task: Task, state: PDCAState, dataset: Dataset | StoredDataset) -> Check:
        """The estimator's look at the data."""
        if isinstance(self.output, Bounds):
            return self.output.check(task, dataset)
        check = self.estimator.check(task, state.estimator, dataset)
        if not check.trusted and self.output.fallback.policy(state.output) is not None:
            note = " The mixture is a clone of the data's rows that stayed within the limits."
            check = replace(check, warnings=tuple(warning + note for warning in check.warnings))
        return check

    def weigh(
        self, task: Task, state: PDCAState, data: Data, members: Sequence[Member],
        policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """Weights over the members, as the output says."""
        return self.output.weights(
            task, self.estimator, state.estimator, data, members, policies, key, tick, check
        )

    def report(
        self, task: Task, state: PDCAState, members: Sequence[Member], weights: NDArray[np.float64]
    ) -> dict[str, Any]:
        """The output's: certificate, and `fallback` where there is one."""
        return self.output.report(task, state.output, state.multiplier_mean, members, weights)


def _of_game(task: Task, state: PDCAState) -> dict[str, Array]:
    """The multipliers, estimates and slack to log, in the data's units."""
    metrics = {"ope/reward": state.estimate[0] / task.scale[0]}
    for i, name in enumerate(task.cost_names):
        h = state.estimate[1 + i]
        metrics[f"lambda/{name}"] = state.dual.lam[i]
        metrics[f"ope/{name}"] = h / task.scale[1 + i]
        metrics[f"slack/{name}"] = (task.tau[i] - h) / task.scale[1 + i]
    return metrics
