"""What PDCA's default is put together from: a table per family of parts, from a name to how it is made.

A new critic, player, estimator or output is a class in its family and a line here; nothing else knows names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from slater.deep.algorithms.pdca.fallback import NoFallback, SafeClone
from slater.deep.algorithms.pdca.output import Bounds, LinearProgram, Output, Uniform
from slater.deep.game.critics import Critics, HingeCritics, SquaredCritics, TimedCritics
from slater.deep.game.dual import (
    EXP3,
    DualPlayer,
    ExponentiatedGradient,
    Fixed,
    Greedy,
    GreedyBox,
    ProjectedGradient,
    ProportionalIntegral,
)
from slater.deep.game.primal import (
    AnchoredGradient,
    NaturalGradient,
    PolicyGradient,
    Primal,
    TrustRegion,
    WeightedRegression,
)
from slater.deep.ope.base import Estimator
from slater.deep.ope.cloning import CLONE_LOG_STD, CloneSettings
from slater.deep.ope.ensemble import EnsembleSettings
from slater.deep.ope.fitted_q import FittedQEstimator
from slater.deep.ope.in_sample import InSampleSettings
from slater.deep.ope.model import ModelEstimator
from slater.deep.ope.residual import ResidualEstimator
from slater.deep.ope.steering import EnsembleEstimator
from slater.deep.ope.study import StudySettings

if TYPE_CHECKING:
    from slater.deep.algorithms.pdca.config import PDCAConfig

__all__ = ["CRITICS", "DUALS", "ESTIMATORS", "FROM_THE_LOG", "OUTPUTS", "PRIMALS"]

CRITICS: Mapping[str, Callable[[PDCAConfig], Critics]] = {
    "squared": lambda c: SquaredCritics(
        c.hidden, c.eta_fast, c.C, c.critic_loss, c.layer_norm, polyak=c.polyak
    ),
    "timed": lambda c: TimedCritics(c.hidden, c.eta_fast, c.C, c.critic_loss, c.layer_norm, polyak=c.polyak),
    "hinge": lambda c: HingeCritics(c.hidden, c.eta_fast, c.C, c.critic_loss, c.layer_norm),
}


def _near_clones(c: PDCAConfig) -> tuple[tuple[int, ...], float, float, float, float, float]:
    """What players that start at a clone share: networks and the range of noise are the clone's."""
    low, high = CLONE_LOG_STD
    return c.hidden, c.eta_slow, c.eta_fast, high, c.clone_weight, low


PRIMALS: Mapping[str, Callable[[PDCAConfig], Primal]] = {
    "anchored": lambda c: AnchoredGradient(*_near_clones(c), c.anchor_weight),
    "trust_region": lambda c: TrustRegion(*_near_clones(c), c.anchor_weight, divergence=c.divergence),
    "weighted": lambda c: WeightedRegression(
        *_near_clones(c), temperature=c.regression_temperature, hold=c.regression_hold
    ),
    "gradient": lambda c: PolicyGradient(c.hidden, c.eta_slow, c.eta_fast, c.log_std_max, c.clone_weight),
    "natural": lambda c: NaturalGradient(
        c.hidden, c.eta_slow, c.eta_fast, c.log_std_max, c.clone_weight, temperature=c.temperature
    ),
}

#: pi-players that are played from policies of the log, and held to them
FROM_THE_LOG = ("anchored", "trust_region", "weighted")

DUALS: Mapping[str, Callable[[PDCAConfig], DualPlayer]] = {
    "greedy": lambda c: Greedy(c.multiplier_bound),
    "greedy_box": lambda c: GreedyBox(c.multiplier_bound),
    "projected_gradient": lambda c: ProjectedGradient(c.multiplier_bound, c.dual_rate, c.dual_start),
    "exponentiated_gradient": lambda c: ExponentiatedGradient(c.multiplier_bound, c.dual_rate, c.dual_start),
    "fixed": lambda c: Fixed(c.multiplier_bound, c.dual_start),
    "pi": lambda c: ProportionalIntegral(c.multiplier_bound, c.dual_rate, c.dual_gain, c.dual_start),
    "exp3": lambda c: EXP3(c.multiplier_bound, c.dual_rate, c.dual_levels, c.dual_start),
}


def _fitted_q(c: PDCAConfig) -> FittedQEstimator:
    return FittedQEstimator(
        hidden=c.hidden, learning_rate=c.eta_fast, steps=c.ope_steps, polyak_rate=c.ope_polyak,
        deflation=c.deflation, layer_norm=c.layer_norm, batch_size=c.batch_size,
        careful_steps=c.select_steps, careful_copies=c.select_copies, careful_limit=c.select_limit,
    )  # fmt: skip


def _study(c: PDCAConfig) -> StudySettings:
    steps, seed = min(c.study_steps, c.steps), c.study_seed
    return StudySettings(
        ensemble=EnsembleSettings(steps=steps, hidden=c.hidden, seed=seed),
        clones=CloneSettings(steps=max(steps // 2, 1), chunk=max(steps // 10, 1), hidden=c.hidden, seed=seed),
        in_sample=InSampleSettings(
            steps=max(steps * 6 // 10, 1), hidden=c.hidden, seed=seed, expectile=EXPECTILE
        ),
        steering=STEERING, enough_sources=ENOUGH_SOURCES,
    )  # fmt: skip


#: networks of the log's ensemble that steer lambda; sources of a log whose clones are columns enough; the
#: expectile of in-sample critics where there are fewer (chosen by `benchmarks.columns`, seeds 0 and 1)
STEERING, ENOUGH_SOURCES, EXPECTILE = 1, 4, 0.9

ESTIMATORS: Mapping[str, Callable[[PDCAConfig], Estimator[Any]]] = {
    "ensemble": lambda c: EnsembleEstimator(_study(c).ensemble, STEERING),
    "model": lambda c: ModelEstimator(c.hidden, c.eta_fast, c.model_copies, c.model_steps),
    "fqe": _fitted_q,
    "residual": lambda c: ResidualEstimator(c.hidden, c.eta_fast, c.C, _fitted_q(c), c.layer_norm),
}


def _linear_program(c: PDCAConfig, estimator: Estimator[Any]) -> LinearProgram:
    # a clone to fall back on only where the program can judge it at once
    if c.fallback and estimator.judges_at_once:
        clone = SafeClone(c.hidden, c.eta_fast, c.log_std_max, c.margin, c.fallback_temperature)
        return LinearProgram(c.margin, c.multiplier_bound, clone)
    return LinearProgram(c.margin, c.multiplier_bound, NoFallback())


def _bounds(c: PDCAConfig, estimator: Estimator[Any]) -> Bounds:
    del estimator
    # a run that is shorter than its study is a trial, and so is its study
    thorough = c.thorough_study and c.steps >= c.study_steps
    return Bounds(c.margin, c.multiplier_bound, NoFallback(), _study(c), thorough)


OUTPUTS: Mapping[str, Callable[[PDCAConfig, Estimator[Any]], Output]] = {
    "lp": _linear_program,
    "bounds": _bounds,
    "uniform": lambda c, estimator: Uniform(c.margin, c.multiplier_bound),
}
