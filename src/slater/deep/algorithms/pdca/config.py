"""Settings of PDCA's default; those of Algorithm 2 as printed are in `paper.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slater.deep.algorithms.base import Config
from slater.deep.algorithms.pdca.parts import CRITICS, DUALS, ESTIMATORS, FROM_THE_LOG, OUTPUTS, PRIMALS
from slater.errors import InputError

__all__ = ["PDCAConfig"]

#: settings that are to be more than 0
POSITIVE = (
    "eta_fast", "eta_slow", "C", "multiplier_bound", "polyak", "fallback_temperature", "anchor_weight",
    "divergence", "regression_temperature",
)  # fmt: skip


@dataclass(frozen=True)
class PDCAConfig(Config):
    """Settings of PDCA's default; "paper" marks what Algorithm 2 as printed has instead."""

    steps: int = 10_020
    """gradient iterations in all; the default: warm start, then parts of four rounds, each from another
    policy of the log (paper: 100,000). A run too short for four rounds shrinks warm start, model and rounds
    in proportion, until four fit"""
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
    multiplier_bound: float = 5.0
    """B, the bound on the sum of multipliers, for rewards and costs scaled to [0, 1] (paper: 5)"""
    critic: str = "squared"
    """form of E_D: squared, a double-Q residual; timed, the same for sums up to the horizon; or hinge
    (paper), the printed C max{E delta_+, E delta_-}"""
    layer_norm: bool = False
    """normalise what each hidden layer of f, g and h gives over its units, before the ReLU"""
    critic_loss: Literal["auto", "printed", "bellman", "atac"] = "auto"
    """size of the critics' loss 2 E +- A, which is of order C: printed as it is, bellman divided by 2C, atac
    by max(2C, 1); auto is printed for a hinge and bellman for a squared critic"""
    dual: str = "auto"
    """lambda-player: projected_gradient, exponentiated_gradient, fixed, pi, greedy, greedy_box (paper), exp3;
    exp3 is a bandit over a grid, which needs many rounds; auto is exponentiated_gradient where the game is
    played from the log's policies, else projected_gradient; fixed stays at each start's price"""
    dual_rate: float = 0.5
    """step of lambda for an estimate of twice the limit or more (gradient players); of a loss in [0, 1] in
    the log-weights (exp3)"""
    dual_levels: int = 5
    """steps of exp3's grid on [0, multiplier_bound], per cost"""
    dual_gain: float = 0.5
    """proportional gain of the pi player, per relative excess"""
    dual_start: float = 1.0
    """sum of the multipliers at the start (gradient players; exp3: the nearest point of the grid)"""
    estimator: str = "auto"
    """OPE for lambda: ensemble, rollouts in a network of the log's study, model, rollouts in a model that the
    run fits itself, fqe, fitted Q evaluation, or residual, E_D as printed and without rounds (paper);
    auto is fqe where observations are one-hot (such states have no smooth dynamics), else ensemble, or
    model where the mixture is not chosen on bounds or the log has fewer than ten whole episodes"""
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
    primal: str = "auto"
    """pi-player: anchored, mirror descent from a policy of the log; trust_region, the same within a given
    divergence; weighted, the same by regression on logged actions; gradient (paper); or natural for discrete
    actions; auto is anchored with the estimator ensemble, else natural for discrete actions if
    temperature > 0, else gradient"""
    anchor_weight: float = 0.003
    """anchored player: weight of the divergence from its start in its loss, relative to the mean size of f"""
    divergence: float = 0.1
    """trust_region player: nats per step that the policy is from its start"""
    regression_temperature: float = 1.0
    """weighted player: rows count exp(advantage / (this * the advantages' spread))"""
    regression_hold: float = 1.0
    """weighted player: weight of the divergence from its start, relative to the likelihood of the rows"""
    starts: int = 2
    """players from the log: policies of it that the game is played from, one after the other: clones of
    the cohorts that are best at the limits' prices"""
    start_rounds: int = 4
    """players from the log: rounds from each start; when all starts had theirs, they begin again, at a third
    and at three times the prices"""
    clone_weight: float = 0.0
    """weight of -log pi(a|s) in the policy's loss, relative to the mean size of its critics"""
    temperature: float = 0.02
    """discrete actions: logits follow advantage / (temperature * H); 0 is the plain gradient (paper: 0)"""
    margin: float = 0.1
    """share of every limit that is held back, for what estimates and conversions get wrong (paper: 0)"""
    mixture: str = "auto"
    """weights over kept policies: bounds, a linear program on bounds by an estimator that passed a check on
    the log's cohorts, with columns of the log's own; lp, one on estimates; or uniform (paper: uniform); auto
    is bounds with the estimator ensemble, else lp"""
    study_steps: int = 10_000
    """mixture bounds: iterations of the ensemble of the log's study, which all limits and seeds share; its
    clones take half of it and the in-sample critics 6/10"""
    study_seed: int = 0
    """mixture bounds: seed of the study's networks; not the run's, so that seeds share the study"""
    thorough_study: bool = True
    """mixture bounds: study the log again, with larger networks and for minutes, where the first study is
    wrong about some cohorts; not in runs of fewer iterations than study_steps"""
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
        for name, table, more in (
            ("critic", CRITICS, ()), ("dual", DUALS, ("auto",)), ("estimator", ESTIMATORS, ("auto",)),
            ("primal", PRIMALS, ("auto",)), ("mixture", OUTPUTS, ("auto",)),
        ):  # fmt: skip
            if (value := getattr(self, name)) not in (known := (*more, *table)):
                raise InputError(f"{name} must be one of {', '.join(known)}, not {value!r}.")
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")
        for name, value, needed in (
            ("estimator", "ensemble", ("bounds", "auto")),
            *(("primal", player, ("bounds", "auto")) for player in FROM_THE_LOG),
        ):  # fmt: skip
            if getattr(self, name) == value and self.mixture not in needed:
                raise InputError(
                    f"{name} {value} lives off the study of the log, which mixture {self.mixture} does not "
                    "make; take mixture bounds."
                )
        if not 0 <= self.margin < 1:
            raise InputError(f"margin must be in [0, 1), not {self.margin}.")
        for name in ("model_copies", "model_steps", "dual_levels", "study_steps", "starts", "start_rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if (
            self.joint_steps < 1
            or min(self.warm_steps, self.ope_steps, self.temperature, self.regression_hold) < 0
        ):
            raise InputError(
                "joint_steps must be at least 1; warm_steps, ope_steps, temperature and regression_hold at "
                "least 0."
            )
