"""What comes out of PDCA: weights over its members, and the certificate beside them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Member
from slater.deep.algorithms.pdca.fallback import Fallback, NoFallback
from slater.deep.batches import Batch, Data
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Check, Estimate, Estimator, Tick
from slater.deep.ope.choice import Verdict, choose_mixture, starting_cohorts
from slater.deep.ope.ensemble import Ensemble
from slater.deep.ope.evidence import Evidence, evidence
from slater.deep.ope.study import StudySettings, cache_folder
from slater.deep.task import Task
from slater.mixing import select
from slater.runs.result import from_log

__all__ = ["Bounds", "LinearProgram", "LogStarts", "Output", "Uniform", "certificate"]


class LogStarts(NamedTuple):
    """Where a game is begun, by the log's own policies.

    policies: S of them, leaves with an axis S first; cohorts: (S,) whose clones they are
    prices: (I,) of the limits, in J-units of the scaled utilities; ensemble: of the log's study
    """

    policies: PolicyNetwork
    cohorts: NDArray[np.int64]
    prices: NDArray[np.float64]
    ensemble: Ensemble


@dataclass(frozen=True)
class Output(abc.ABC):
    """How the members become a mixture; and policies of its own to mix, trained before the game.

    margin: share of every limit that is held back
    multiplier_bound: B, for the certificate
    fallback: a policy of its own
    """

    margin: float
    multiplier_bound: float
    fallback: Fallback = field(default_factory=NoFallback)

    def init(self, task: Task, key: Array) -> Any:
        """The state of its own policies."""
        return self.fallback.init(task, key)

    def update(self, task: Task, state: Any, batch: Batch, step: Array) -> tuple[Any, dict[str, Array]]:
        """One iteration of its own policies, `step` from 0; and scalars to log."""
        return self.fallback.update(task, state, batch, step)

    def starts(
        self, task: Task, dataset: Dataset | StoredDataset, count: int, tick: Tick
    ) -> LogStarts | None:
        """Where a game is best begun, by a study of the log; None: this output makes none."""
        del task, dataset, count, tick
        return None

    def check(
        self, task: Task, estimator: Estimator[Any], estimator_state: Any, state: Any,
        dataset: Dataset | StoredDataset,
    ) -> Check:  # fmt: skip
        """A last look at the data: whether members may be chosen by estimates; `state` is the output's."""
        check = estimator.check(task, estimator_state, dataset)
        if not check.trusted and self.fallback.policy(state) is not None:
            note = " The mixture is a clone of the data's rows that stayed within the limits."
            check = replace(check, warnings=tuple(warning + note for warning in check.warnings))
        return check

    @abc.abstractmethod
    def weights(
        self, task: Task, estimator: Estimator[Any], estimator_state: Any, data: Data,
        members: Sequence[Member], policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
        starts: NDArray[np.int64],
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """Weights over the members, shape (members,), and the members with what was learned about them.

        starts: (members,) the cohort of the log from whose clone each was played; -1: from none
        """

    def report(
        self, task: Task, state: Any, multiplier_mean: Array, members: Sequence[Member],
        weights: NDArray[np.float64],
    ) -> dict[str, Any]:  # fmt: skip
        """The `certificate`, and what the fallback says."""
        found = certificate(task, self.multiplier_bound, multiplier_mean, members, weights)
        return found | self.fallback.report(state, members, weights)


@dataclass(frozen=True)
class Uniform(Output):
    """The paper's: every member alike."""

    def weights(
        self, task: Task, estimator: Estimator[Any], estimator_state: Any, data: Data,
        members: Sequence[Member], policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
        starts: NDArray[np.int64],
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """1 / members."""
        del task, estimator, estimator_state, data, policies, key, tick, check, starts
        return np.full(len(members), 1.0 / len(members)), list(members)


@dataclass(frozen=True)
class LinearProgram(Output):
    """The best mixture within the limits less the margin, by careful estimates (`slater.mixing`).

    By an estimator that cannot be trusted, all weight is on the fallback, if there is one.
    """

    def weights(
        self, task: Task, estimator: Estimator[Any], estimator_state: Any, data: Data,
        members: Sequence[Member], policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
        starts: NDArray[np.int64],
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """By the linear program; members that it weighed have careful estimates."""
        del starts
        careful = estimator.careful(task, estimator_state, data, tick)

        def refine(index: int) -> NDArray[np.float64]:
            copies = careful(policies[index], jax.random.fold_in(key, members[index].step))
            tick(f"policy of step {members[index].step}", 1, 1)
            return np.asarray(Estimate(jnp.asarray(copies)).pessimistic, dtype=np.float64)

        # a member without an estimate (the fallback) is refined like all others
        unknown = np.zeros(1 + task.costs)
        quick = np.array([m.estimates or unknown for m in members], dtype=np.float64)
        limits = np.asarray(task.tightened_limits(self.margin), np.float64)
        most = len(members) if estimator.careful_limit is None else estimator.careful_limit
        weights, used, refined = select(quick, limits, refine, most)
        better = [
            Member(m.step, tuple(used[k]), careful=k in refined, kind=m.kind) for k, m in enumerate(members)
        ]
        clone = np.array([member.kind == "fallback" for member in members])
        if clone.any() and not check.trusted:
            weights = clone.astype(np.float64)
        return weights, better


@dataclass(frozen=True)
class Bounds(Output):
    """The best mixture on bounds, by an estimator that passed a check on the log's cohorts, with columns of
    the log's own (`slater.deep.ope.choice`).

    The log is studied once per data and settings, with networks that steered no multiplier; `margin` is that
    of the game, the output's comes from the check.

    settings: of the quick study; thorough: whether a better one follows where that fails its check
    """

    settings: StudySettings = field(default_factory=StudySettings)
    thorough: bool = True

    def evidence(self, task: Task, dataset: Dataset | StoredDataset, tick: Tick | None = None) -> Evidence:
        """What the log says of policies and estimators under the task's limits."""
        return evidence(
            task, _loaded(dataset), self.settings, cache_folder(), thorough=self.thorough, tick=tick
        )

    def starts(
        self, task: Task, dataset: Dataset | StoredDataset, count: int, tick: Tick
    ) -> LogStarts | None:
        """By the prices of the limits at the best mixture of the log's cohorts."""
        found = self.evidence(task, dataset, tick)
        cohorts, prices = starting_cohorts(task, found.study, count)
        policies = jax.tree.map(lambda leaf: leaf[cohorts], found.study.policies)
        return LogStarts(policies, cohorts, prices, found.steering)

    def check(
        self, task: Task, estimator: Estimator[Any], estimator_state: Any, state: Any,
        dataset: Dataset | StoredDataset,
    ) -> Check:  # fmt: skip
        """The study of the log and its verdict on estimators: columns for the mixture, and a report."""
        del estimator, estimator_state, state
        looked = self.evidence(task, dataset)
        own, found = looked.study, looked.verdict
        labels = [f"clone of {name}" for name in own.cohorts.names]
        multipliers = self.settings.in_sample.multipliers[: own.count - len(own.cohorts)]
        labels += [f"in-sample policy of multiplier {x:g}" for x in multipliers]
        return Check(
            found.judge is not None, found.describe(task) | {"studied_again": looked.again},
            () if found.judge is not None else (found.line(task) + ".",),
            tuple((own.policy(k), label) for k, label in enumerate(labels)), found,
        )  # fmt: skip

    def weights(
        self, task: Task, estimator: Estimator[Any], estimator_state: Any, data: Data,
        members: Sequence[Member], policies: Sequence[PolicyNetwork], key: Array, tick: Tick, check: Check,
        starts: NDArray[np.int64],
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """By the linear program on bounds; every member has a careful estimate, or none where the estimator
        does not know.
        """
        del estimator, estimator_state, data
        found: Verdict = check.evidence
        played = [k for k, member in enumerate(members) if not from_log(member.kind)]
        logged = [k for k, member in enumerate(members) if from_log(member.kind)]
        more = found.estimator.estimates([policies[k] for k in played], key, tick) if played else None
        choice = choose_mixture(task, found, more, starts[played])
        weights, better = np.zeros(len(members)), list(members)
        for place, k in enumerate([*logged, *played]):
            weights[k] = choice.weights[place]
            if choice.withheld[place]:
                better[k] = replace(members[k], estimates=None)
                continue
            said = tuple(float(x) for x in choice.estimates.mean[place, :-1])
            apart = np.sqrt(choice.estimates.spread[place] ** 2 + choice.estimates.error[place] ** 2)[:-1]
            spread = tuple(float(x) for x in apart)
            better[k] = replace(members[k], estimates=said, careful=True, spread=spread)
        return weights, better


#: rows of a log that is too large for memory that are studied, in whole episodes
STUDIED_ROWS = 2**20


def _loaded(dataset: Dataset | StoredDataset) -> Dataset:
    """The log in memory; of one on disk, whole episodes of at most `STUDIED_ROWS`, by a fixed seed."""
    if isinstance(dataset, Dataset):
        return dataset
    lengths = dataset.episodes.lengths
    order = np.random.default_rng(0).permutation(len(lengths))
    return dataset.subset(np.sort(order[np.cumsum(lengths[order]) <= STUDIED_ROWS])).load()


def certificate(
    task: Task, multiplier_bound: float, multiplier_mean: Array, members: Sequence[Member],
    weights: NDArray[np.float64],
) -> dict[str, Any]:  # fmt: skip
    """Multipliers, slack, and an offline estimate of the duality gap, all in the data's units.

        gap = max_pi [J_R - lam_bar.J_C](pi) + lam_bar.tau - [J_R - B max_i (J_Ci - tau_i)_+](mixture)

    with the members' estimates for J, and the best of the kept policies for the maximum over all: an
    estimate from below, honest only as far as those policies and their estimates are.
    """
    names, lam = task.cost_names, np.asarray(multiplier_mean, dtype=np.float64)
    rate = task.scale[1:] / task.scale[0]
    answer: dict[str, Any] = {"lambda_mean": dict(zip(names, (lam * rate).tolist(), strict=True))}
    known = [k for k, member in enumerate(members) if member.estimates is not None]
    if known and np.sum(weights[known]) > 1.0 - 1e-9:
        J = np.array([members[k].estimates for k in known])
        tau = task.tau.astype(np.float64)
        mixed = weights[known] @ J
        upper = float(np.max(J[:, 0] - J[:, 1:] @ lam) + lam @ tau)
        lower = float(mixed[0] - multiplier_bound * max(np.max(mixed[1:] - tau), 0.0))
        slack = (tau - mixed[1:]) / task.scale[1:]
        answer["slack"] = dict(zip(names, slack.tolist(), strict=True))
        answer["duality_gap_estimate"] = (upper - lower) / float(task.scale[0])
    return answer
