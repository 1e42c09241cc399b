"""Settings of PDCA, the default and Algorithm 2 as the paper prints it, and the schedule that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from slater.deep.algorithms.base import Config
from slater.errors import InputError

__all__ = ["PAPER", "PDCAConfig"]

#: Algorithm 2 as printed, with the appendix' settings for Bullet
PAPER: Mapping[str, Any] = {
    "steps": 100_000, "batch_size": 512, "hidden": (256, 256), "C": 5.0, "critic": "hinge",
    "dual": "greedy_box", "estimator": "residual", "warm_steps": 0, "ope_steps": 0, "log_std_max": 2.0,
    "temperature": 0.0, "mixture": "uniform", "fallback": False, "margin": 0.0,
    "normalise_observations": False,
}  # fmt: skip


@dataclass(frozen=True)
class PDCAConfig(Config):
    """Settings of PDCA. "paper" marks what the preset `paper` changes, and to what."""

    steps: int = 32_030
    """gradient iterations in all; the default: warm start, model, 30 rounds (paper: 100,000). A run too short
    for four rounds shrinks warm start, model and rounds in proportion, until four fit"""
    batch_size: int = 256
    """transitions per iteration (paper: 512)"""
    hidden: tuple[int, ...] = (128, 128)
    """width of each hidden layer, of every network (paper: 256, 256)"""
    eta_fast: float = 1e-3
    """learning rate of the critics (paper, Bullet: 1e-3; RWRL: 3e-4)"""
    eta_slow: float = 1e-4
    """learning rate of the policy (paper: 1e-4)"""
    C: float = 10.0
    """C_infinity, the bound on weights in W: weight of the Bellman error against pessimism (paper: 5)"""
    B: float = 5.0
    """bound on the sum of multipliers, for rewards and costs scaled to [0, 1] (paper: 5, from {2, 5, 10})"""
    critic: Literal["squared", "hinge"] = "squared"
    """form of E_D: squared double-Q residual, or the printed C max{E delta_+, E delta_-} (paper: hinge)"""
    layer_norm: bool = False
    """normalise what each hidden layer of f, g and h gives over its units, before the ReLU"""
    critic_loss: Literal["auto", "printed", "bellman", "atac"] = "auto"
    """size of the critics' loss 2 E +- A, which is of order C: printed as it is, bellman divided by 2C, atac
    by max(2C, 1); auto is printed for a hinge and bellman for a squared critic"""
    dual: Literal["greedy", "greedy_box", "projected_gradient", "exponentiated_gradient", "pi", "exp3"] = (
        "projected_gradient"
    )
    """lambda-player (paper: greedy_box); exp3 is a bandit over a grid, which needs many rounds"""
    dual_rate: float = 0.5
    """step of lambda for an estimate of twice the limit or more (gradient players); of a loss in [0, 1] in
    the log-weights (exp3)"""
    dual_levels: int = 5
    """steps of exp3's grid on [0, B], per cost"""
    dual_gain: float = 0.5
    """proportional gain of the pi player, per relative excess"""
    dual_start: float = 1.0
    """sum of the multipliers at the start (gradient players; exp3: the nearest point of the grid)"""
    estimator: Literal["auto", "model", "fqe", "residual"] = "auto"
    """OPE for lambda: rollouts in a learned model, fitted Q evaluation, or E_D as printed (paper: residual);
    auto is fqe where observations are one-hot (such states have no smooth dynamics), else model"""
    model_steps: int = 15_000
    """iterations in which the model is fitted, before the first round"""
    model_copies: int = 3
    """networks of the model; a cost counts as the largest of them, a reward as the mean"""
    polyak: float = 0.005
    """rate of the critics' target networks, per iteration"""
    deflation: float = 0.01
    """rate at which FQE solves for the level of its estimate, per iteration; 0 leaves it to the targets"""
    warm_steps: int = 2_000
    """iterations of cloning and return regression before the game starts (paper: 0)"""
    joint_steps: int = 500
    """iterations of critics and policy per round, lambda fixed"""
    ope_steps: int = 2_500
    """iterations of FQE per round; 0 moves everything in every iteration (paper: 0); a model needs 1"""
    ope_polyak: float = 0.02
    """rate of FQE's target network, per iteration; it runs from scratch and briefly, so it may be fast"""
    log_std_max: float = -1.0
    """largest log standard deviation of a Gaussian policy before the tanh (paper: 2)"""
    clone_weight: float = 0.0
    """weight of -log pi(a|s) in the policy's loss, relative to the mean size of its critics"""
    temperature: float = 0.02
    """discrete actions: logits follow advantage / (temperature * H); 0 is the plain gradient (paper: 0)"""
    margin: float = 0.1
    """share of every limit that is held back, for what estimates and conversions get wrong (paper: 0)"""
    mixture: Literal["lp", "uniform"] = "lp"
    """weights over kept policies: linear program on estimates, or uniform (paper: uniform)"""
    fallback: bool = True
    """with a model and mixture lp: one more policy to mix, a clone of the rows after which every cost stayed
    within its limit less the margin (paper: false)"""
    fallback_temperature: float = 1.0
    """the fallback prefers rows by exp(advantage / (this * the advantages' spread)); inf: clones all alike"""
    select_steps: int = 6_000
    """iterations of the careful FQE of each policy that the linear program gives weight"""
    select_copies: int = 2
    """networks per utility in the careful FQE; a cost counts as the largest of them, a reward as the mean"""
    select_limit: int = 8
    """policies that are estimated carefully at most"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("eta_fast", "eta_slow", "C", "B", "polyak", "fallback_temperature"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")
        if not 0 <= self.margin < 1:
            raise InputError(f"margin must be in [0, 1), not {self.margin}.")
        for name in ("model_copies", "model_steps", "dual_levels"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.joint_steps < 1 or min(self.warm_steps, self.ope_steps, self.temperature) < 0:
            raise InputError(
                "joint_steps must be at least 1; warm_steps, ope_steps and temperature at least 0."
            )

    @property
    def start(self) -> int:
        """Iterations before the first round: the warm start, and the model's if there is one."""
        return self.warm_steps + (self.model_steps if self.estimator == "model" else 0)

    @property
    def has_fallback(self) -> bool:
        """Whether there is a clone to fall back on: only where the linear program can judge it at once."""
        return self.fallback and self.estimator == "model" and self.mixture == "lp"

    @property
    def ope_length(self) -> int:
        """Iterations of OPE at the end of a round."""
        return 1 if self.estimator == "model" else self.ope_steps

    @property
    def round_length(self) -> int:
        """Iterations of a round; 1 where everything moves in every iteration."""
        return self.joint_steps + self.ope_length if self.ope_length else 1

    def phase(self, step: int) -> tuple[str, int]:
        """The phase of iteration `step`, and the first iteration after it.

        Phases are warm, fit (of the model), then rounds of joint and ope; without rounds, joint to the end.
        """
        if step < self.warm_steps:
            return "warm", self.warm_steps
        if step < self.start:
            return "fit", self.start
        if self.ope_length == 0:
            return "joint", self.steps
        start = self.start + (step - self.start) // self.round_length * self.round_length
        if step < start + self.joint_steps:
            return "joint", start + self.joint_steps
        return "ope", start + self.round_length

    def ends_round(self, done: int) -> bool:
        """Whether the last of `done` iterations is the last one of a round."""
        rounds, rest = divmod(done - self.start, self.round_length)
        return rest == 0 and rounds >= 1

    def shortened(self) -> PDCAConfig:
        """These settings, with parts small enough for four rounds within `steps`; themselves if they fit."""
        needed = self.start + 4 * self.round_length
        if self.ope_length == 0 or needed <= self.steps:
            return self
        if self.steps < 10:
            raise InputError(f"pdca needs at least 10 steps for its parts, not {self.steps}.")
        share = self.steps / (needed + 5)  # 5 for rounding up

        def short(steps: int) -> int:
            return max(int(steps * share), 1)

        return replace(
            self, warm_steps=short(self.warm_steps), model_steps=short(self.model_steps),
            joint_steps=short(self.joint_steps), ope_steps=short(self.ope_steps),
        )  # fmt: skip
