"""Settings of PDCA's default; those of Algorithm 2 as printed are in `paper.py`."""

from __future__ import annotations

from dataclasses import dataclass

from slater.deep.algorithms.base import Config
from slater.deep.log_model.log_model import LogModelSettings, settings_of
from slater.errors import InputError

__all__ = ["PDCAConfig"]


@dataclass(frozen=True)
class PDCAConfig(Config):
    """Settings of PDCA's default; "paper" marks what Algorithm 2 as printed has instead."""

    steps: int = 6_020
    """gradient iterations of the game; the default: three parts of four rounds, two of them from candidates
    of the log (paper: 100,000). A run too short for one part has shorter rounds"""
    batch_size: int = 256
    """transitions per iteration (paper: 512)"""
    hidden: tuple[int, ...] = (128, 128)
    """width of each hidden layer, of every network (paper: 256, 256)"""
    eta_fast: float = 1e-3
    """learning rate of the critics (paper, Bullet: 1e-3; RWRL: 3e-4)"""
    multiplier_bound: float = 5.0
    """B, the bound on the sum of multipliers, in the best return of a candidate over the limit (paper: 5, for
    rewards and costs scaled to [0, 1])"""
    dual_rate: float = 0.5
    """step of lambda for an estimate of twice the limit or more"""
    joint_steps: int = 500
    """iterations of critics and policy per round, lambda fixed"""
    player_rate: float = 3e-4
    """learning rate of the policy (paper: 1e-4)"""
    anchor_weight: float = 0.1
    """weight of the policy's divergence from its start, in nats a step, beside advantages of unit size"""
    confidence: float = 0.95
    """probability with which the posterior is to keep each limit"""
    model_steps: int = 4_000
    """iterations of the log model at most, which all limits and seeds share; small logs take fewer"""
    model_hidden: tuple[int, ...] | None = None
    """layers of the log model's dynamics; None: 2 x 128, from 40,000 rows on 3 x 256, of
    half as many iterations again"""
    model_seed: int = 0
    """seed of the log model; not the run's, so that seeds share it"""
    components: int = 5
    """Gaussians that actions of clones and of the game's policies are drawn from"""
    levels: int | None = None
    """values of an observation's column that have chances of their own in the log model, at most;
    1: observations are one-hot; None: what the log has"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("eta_fast", "multiplier_bound", "dual_rate", "player_rate", "anchor_weight"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")
        if not 0.5 <= self.confidence < 1:
            raise InputError(f"confidence must be in [0.5, 1), not {self.confidence}.")
        for name in ("model_steps", "joint_steps", "components"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")

    def log_model(self) -> LogModelSettings:
        """How the log is fitted."""
        return settings_of(
            None, self.model_steps, self.hidden, self.components, self.model_seed, self.levels or 0,
            self.model_hidden,
        )  # fmt: skip
