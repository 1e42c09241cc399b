"""What PDCA's default is put together from: a table per family of parts, from a name to how it is made.

A new critic, player, estimator or output is a class in its family and a line here; nothing else knows names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from slater.deep.algorithms.pdca.output import LinearProgram, Output, PosteriorProgram, Uniform
from slater.deep.game.critics import Critics, HingeCritics, SquaredCritics
from slater.deep.game.dual import DualPlayer, ExponentiatedGradient, Greedy, GreedyBox, ProjectedGradient
from slater.deep.game.player import ModelPlayer
from slater.deep.game.primal import NaturalGradient, PolicyGradient, Primal
from slater.deep.log_model.clones import CLONE_LOG_STD
from slater.deep.log_model.log_model import LogModelSettings, settings_of
from slater.deep.ope.base import Estimator
from slater.deep.ope.fitted_q import FittedQEstimator
from slater.deep.ope.rollouts import RolloutEstimator

if TYPE_CHECKING:
    from slater.deep.algorithms.pdca.config import PDCAConfig

__all__ = ["CRITICS", "DUALS", "ESTIMATORS", "OUTPUTS", "PRIMALS", "log_model_settings", "player_in_model"]

CRITICS: Mapping[str, Callable[[PDCAConfig], Critics]] = {
    "squared": lambda c: SquaredCritics(c.hidden, c.eta_fast, c.C, polyak=c.polyak),
    "hinge": lambda c: HingeCritics(c.hidden, c.eta_fast, c.C),
}

PRIMALS: Mapping[str, Callable[[PDCAConfig], Primal]] = {
    "gradient": lambda c: PolicyGradient(c.hidden, c.eta_slow, c.eta_fast, LOG_STD_MAX),
    "natural": lambda c: NaturalGradient(
        c.hidden, c.eta_slow, c.eta_fast, LOG_STD_MAX, temperature=c.temperature
    ),
}


def player_in_model(c: PDCAConfig) -> ModelPlayer:
    """The pi-player of a game in the log model; its networks and noise are those of the log's clones, at
    which it starts.
    """
    return ModelPlayer(
        c.hidden, c.player_rate, c.eta_fast, CLONE_LOG_STD, c.components,
        log_model_settings(c).dynamics.networks // 2, 2 * c.batch_size, c.anchor_weight,
    )  # fmt: skip


DUALS: Mapping[str, Callable[[PDCAConfig], DualPlayer]] = {
    "greedy": lambda c: Greedy(c.multiplier_bound),
    "greedy_box": lambda c: GreedyBox(c.multiplier_bound),
    "projected_gradient": lambda c: ProjectedGradient(c.multiplier_bound, c.dual_rate, DUAL_START),
    "exponentiated_gradient": lambda c: ExponentiatedGradient(c.multiplier_bound, c.dual_rate, DUAL_START),
}
#: largest log standard deviation of a Gaussian policy that starts at random (paper: 2)
LOG_STD_MAX = -1.0
#: rate of FQE's target network, per iteration; it runs from scratch and briefly, so it may be fast
OPE_POLYAK = 0.02
#: sum of the multipliers before anything is known
DUAL_START = 1.0


def log_model_settings(c: PDCAConfig) -> LogModelSettings:
    """How the log is fitted under the settings of a run."""
    return settings_of(
        None, c.model_steps, c.hidden, c.components, c.model_seed, bool(c.levels),
        c.model_hidden,
    )  # fmt: skip


ESTIMATORS: Mapping[str, Callable[[PDCAConfig], Estimator[Any]]] = {
    "rollouts": lambda c: RolloutEstimator(log_model_settings(c).dynamics),
    "fqe": lambda c: FittedQEstimator(
        hidden=c.hidden, learning_rate=c.eta_fast, steps=c.ope_steps, polyak_rate=OPE_POLYAK,
        batch_size=c.batch_size, careful_steps=c.select_steps, careful_limit=c.select_limit,
    ),
}  # fmt: skip

OUTPUTS: Mapping[str, Callable[[PDCAConfig], Output]] = {
    "posterior": lambda c: PosteriorProgram(
        c.margin, c.multiplier_bound, log_model_settings(c), c.confidence
    ),
    "lp": lambda c: LinearProgram(c.margin, c.multiplier_bound),
    "uniform": lambda c: Uniform(c.margin, c.multiplier_bound),
}
