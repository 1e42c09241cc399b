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
    start      the log's candidates that are best at the limits' prices and at a third of them, one after the
               other, and those prices as multipliers; the game goes on where the second ended
    primal     mirror descent in the log model (`slater.deep.game.player`), where 2E + A is A: the policy is
               held to its start, where the model can be believed; for one-hot observations critics on the
               data, and for discrete actions the natural gradient, whose logits cannot die
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
from slater.deep.algorithms.pdca.output import PRICE_SHARES, certificate
from slater.deep.algorithms.pdca.paper import PaperPDCA
from slater.deep.algorithms.pdca.schedule import MOVES, Schedule
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, Data, draw_keys
from slater.deep.game.critics import CriticsState
from slater.deep.game.dual import DualState, Outcome
from slater.deep.game.player import ModelPlayer, PlayerState
from slater.deep.game.primal import PrimalState
from slater.deep.log_model.log_model import has_levels, hidden_for, suits_a_model
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Check, Tick
from slater.deep.task import Task
from slater.limit_status import LimitStatus

__all__ = ["PDCA", "PDCAState"]

#: rounds from each start of a game in the log model
START_ROUNDS = 4
#: settings that are lengths of phases
PHASES = ("warm_steps", "joint_steps", "ope_steps")


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
        config = replace(config, primal="model" if with_log else natural)
    if config.dual == "auto":
        from_log = config.primal == "model"
        config = replace(config, dual="exponentiated_gradient" if from_log else "projected_gradient")
    return config


class PDCAState(eqx.Module):
    """Everything that changes: the state of every part, and

    critics: () where the game is in the log model, and the player has them
    starts: candidates that such a game is played from, leaves with an axis S first, or ()
    start_prices: (S, I) of the limits there; price_unit: (I,) what lambda is a multiple of
    aim: (I,) costs that lambda steers to, in J-units
    multiplier_mean: (I,) mean of the multipliers played, lambda_bar of the paper
    estimate: (1+I,) the last pessimistic estimate of J(pi), in J-units of the scaled utilities
    """

    critics: CriticsState | tuple[()]
    estimator: Any
    primal: PrimalState
    dual: DualState
    starts: Any
    start_prices: Array
    price_unit: Array
    aim: Array
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
        self.player = parts.player_in_model(config) if chosen.primal == "model" else None
        self.primal = parts.PRIMALS["gradient" if self.player else chosen.primal](config)
        self.dual = parts.DUALS[chosen.dual](config)
        self.output = parts.OUTPUTS[chosen.mixture](config)
        self.schedule = Schedule(
            config.steps, 0 if self.player else config.warm_steps, self.estimator.fit_steps,
            config.joint_steps, self.estimator.policy_steps, START_ROUNDS if self.player else 0,
            len(PRICE_SHARES),
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
            critics=() if self.player else self.critics.init(task, key_f, key_g),
            estimator=self.estimator.init(task, key_h),
            primal=(self.player or self.primal).init(task, key_pi),
            dual=self.dual.init(task.costs),
            starts=self._no_starts(task, key_pi),
            start_prices=jnp.zeros((len(PRICE_SHARES), task.costs)),
            price_unit=jnp.ones(task.costs),
            aim=jnp.asarray(task.tightened_limits(self.config.margin)),
            multiplier_mean=jnp.zeros(task.costs),
            estimate=jnp.zeros(1 + task.costs),
        )

    def _no_starts(self, task: Task, key: Array) -> Any:
        """Room for starts, which come with `prepared`."""
        if (player := self.player) is None:
            return ()
        like = jax.eval_shape(lambda: player.init(task, key).policy)
        return jax.tree.map(lambda x: jnp.zeros((len(PRICE_SHARES), *x.shape), x.dtype), like)

    def prepared(
        self, task: Task, state: PDCAState, dataset: Dataset | StoredDataset, tick: Tick
    ) -> PDCAState:
        """With starts, prices, what to aim at and the estimator's networks from the log model."""
        found = self.output.starts(task, dataset, tick)
        if found is None:
            return state
        state = replace(state, estimator=self.estimator.studied(state.estimator, found.dynamics))
        if self.player:
            prices, unit, aim = (jnp.asarray(x, jnp.float32) for x in (found.prices, found.unit, found.aim))
            state = replace(state, starts=found.policies, start_prices=prices, price_unit=unit, aim=aim)
        # buffers of its own: a chunk reuses those of its state, and the log model stays
        return jax.tree.map(jnp.array, state)

    def update(
        self, task: Task, state: PDCAState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[PDCAState, dict[str, Array]]:
        """One iteration: the parts that move in this phase, each after those it depends on."""
        moves, play = MOVES[phase], self._play if self.player else self._train
        state, metrics = play(task, state, batch, key, step, moves)
        if "dual" in moves:  # lambda, by h(s0, pi) - tau
            key_first = draw_keys(key).s0
            policy = state.primal.policy
            estimate = self.estimator.value(task, state.estimator, policy, batch.s0, key_first).pessimistic
            dual, mean = self._respond(task, state, estimate, key_first, step)
            state = replace(state, dual=dual, multiplier_mean=mean, estimate=estimate)
        game = {"play", "climb", "critics", "dual"} & set(moves)
        return state, metrics | (_of_game(task, state) if game else {})

    def _play(
        self, task: Task, state: PDCAState, batch: Batch, key: Array, step: Array, moves: tuple[str, ...]
    ) -> tuple[PDCAState, dict[str, Array]]:
        """The pi-player in the log model."""
        player, metrics = self.player, dict[str, Array]()
        assert player is not None
        if "start" in moves:  # pi <- a candidate of the log; lambda <- its price
            state = self._start(player, state, step)
        own = state.primal
        assert isinstance(own, PlayerState)
        if "play" in moves:  # episodes of pi
            own = player.play(task, own, state.estimator, self.schedule.half(step), batch.s0, key)
        if "climb" in moves:  # pi climbs f - sum_i lambda_i g^i
            own, metrics = player.climb(own, state.dual.lam * state.price_unit, key)
        return replace(state, primal=own), metrics

    def _train(
        self, task: Task, state: PDCAState, batch: Batch, key: Array, step: Array, moves: tuple[str, ...]
    ) -> tuple[PDCAState, dict[str, Array]]:
        """Critics and the pi-player on the data."""
        metrics: dict[str, Array] = {}
        critics, estimator, primal = state.critics, state.estimator, state.primal
        assert isinstance(critics, CriticsState)
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
            z = self.critics.lagrangian(task, critics, state.dual.lam, batch)
            primal, told = self.primal.update(task, primal, z, batch, key)
            metrics |= told
        return replace(state, critics=critics, estimator=estimator, primal=primal), metrics

    def _start(self, player: ModelPlayer, state: PDCAState, step: Array) -> PDCAState:
        """The players at the start of the part that begins with iteration `step`: at a candidate of the log,
        or, when all were had, where they are, and held to that.
        """
        part = self.schedule.start(step)
        fresh = self.schedule.part(step) == part

        def at_start(new: Any, own: Any) -> Any:
            return jax.tree.map(lambda x, y: jnp.where(fresh, x, y), new, own)

        policy = at_start(jax.tree.map(lambda leaf: leaf[part], state.starts), state.primal.policy)
        prices = state.start_prices[part] / state.price_unit
        bounded = jnp.clip(prices, 1e-3, 0.9 * self.config.multiplier_bound)
        assert isinstance(state.primal, PlayerState)
        primal = player.start(state.primal, policy)
        dual = at_start(self.dual.restart(state.dual, bounded), state.dual)
        return replace(state, primal=primal, dual=dual)

    def _respond(
        self, task: Task, state: PDCAState, estimate: Array, key: Array, step: Array
    ) -> tuple[DualState, Array]:
        """The lambda-player's move, if its round is over, and the mean of the multipliers played so far."""
        outcome = Outcome(estimate[0], estimate[1:], state.aim, 1e-3 / (1.0 - task.gamma))
        moved = self.dual.respond(state.dual, outcome, key)
        moves_now, rounds = self.schedule.moves_dual(step)
        dual = jax.tree.map(lambda new, old: jnp.where(moves_now, new, old), moved, state.dual)
        # lambda_bar is over the multipliers that were played, before this move
        played = state.dual.lam * state.price_unit
        mean = state.multiplier_mean + (played - state.multiplier_mean) / jnp.maximum(rounds, 1)
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
        half = {m.step: int(self.schedule.half(m.step - 1)) for m in members if self.player}
        output = replace(self.output, played_in=half) if half else self.output
        return output.weights(
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
        metrics[f"lambda/{name}"] = state.dual.lam[i] * state.price_unit[i]
        metrics[f"ope/{name}"] = h / task.scale[1 + i]
        metrics[f"slack/{name}"] = (task.tau[i] - h) / task.scale[1 + i]
    return metrics
