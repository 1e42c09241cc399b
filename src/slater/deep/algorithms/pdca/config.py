"""Settings of PDCA's default; those of Algorithm 2 as printed are in `paper.py`."""

from __future__ import annotations

from dataclasses import dataclass

from slater.deep.algorithms.base import Config
from slater.deep.algorithms.pdca.parts import CRITICS, DUALS, ESTIMATORS, OUTPUTS, PRIMALS
from slater.errors import InputError

__all__ = ["PDCAConfig"]

#: settings that are to be more than 0
POSITIVE = ("eta_fast", "eta_slow", "C", "multiplier_bound", "polyak", "anchor_weight", "player_rate")


@dataclass(frozen=True)
class PDCAConfig(Config):
    """Settings of PDCA's default; "paper" marks what Algorithm 2 as printed has instead."""

    steps: int = 6_020
    """gradient iterations of the game; the default: three parts of four rounds, two of them from candidates
    of the log (paper: 100,000). A run too short for four rounds shrinks them in proportion, until four fit"""
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
    """B, the bound on the sum of multipliers, for rewards and costs scaled to [0, 1] (paper: 5); in the log
    model they are counted in the best return of a candidate over the limit"""
    critic: str = "squared"
    """form of E_D: squared, a double-Q residual, or hinge (paper), the printed C max{E delta_+, E delta_-}"""
    dual: str = "auto"
    """lambda-player: projected_gradient, exponentiated_gradient, greedy, greedy_box (paper); auto is
    exponentiated_gradient where the game is played in the log model, else projected_gradient"""
    dual_rate: float = 0.5
    """step of lambda for an estimate of twice the limit or more (gradient players)"""
    estimator: str = "auto"
    """OPE for lambda: rollouts in the log model, or fqe, fitted Q evaluation; auto is fqe where observations
    are one-hot (such states have no smooth dynamics), else rollouts"""
    polyak: float = 0.005
    """rate of target networks of critics on the data, per iteration"""
    warm_steps: int = 2_000
    """iterations of return regression before a game on the data (paper: 0); none in the log model"""
    joint_steps: int = 500
    """iterations of critics and policy per round, lambda fixed"""
    ope_steps: int = 2_500
    """iterations of FQE per round; rollouts need 1"""
    select_steps: int = 6_000
    """iterations of the careful FQE of each policy that the linear program gives weight"""
    select_limit: int = 8
    """policies that FQE estimates carefully at most"""
    primal: str = "auto"
    """pi-player: model, mirror descent in the log model from candidates of the log; gradient (paper); or
    natural for discrete actions; auto is model with rollouts, else natural for discrete actions, else
    gradient"""
    player_rate: float = 3e-4
    """model player: learning rate of the policy"""
    anchor_weight: float = 0.1
    """model player: weight of the divergence from its start, in nats a step, beside advantages of unit
    size"""
    temperature: float = 0.02
    """natural player: logits follow advantage / (temperature * H)"""
    margin: float = 0.1
    """share of every limit that a game on the data holds back, for what estimates get wrong (paper: 0); in
    the log model it is what the posterior's bounds ask for"""
    mixture: str = "auto"
    """weights over policies: posterior, a cone program on what the log says of them and how sure it is; lp, a
    linear program on estimates; or uniform (paper); auto is posterior with rollouts, else lp"""
    confidence: float = 0.95
    """probability with which the posterior is to keep each limit"""
    model_steps: int = 8_000
    """iterations of the log model at most, which all limits and seeds share; small logs take fewer"""
    model_hidden: tuple[int, ...] | None = None
    """layers of the log model's dynamics; None: 2 x 128, from 40,000 rows on 3 x 256, of
    half as many iterations again"""
    model_seed: int = 0
    """seed of the log model; not the run's, so that seeds share it"""
    components: int = 5
    """Gaussians that actions of clones and of the game's policies are drawn from"""
    levels: bool | None = None
    """whether columns of few values have chances of their own in the log model; None: if there are any"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, table, more in (
            ("critic", CRITICS, ()), ("dual", DUALS, ("auto",)), ("estimator", ESTIMATORS, ("auto",)),
            ("primal", PRIMALS, ("auto", "model")), ("mixture", OUTPUTS, ("auto",)),
        ):  # fmt: skip
            if (value := getattr(self, name)) not in (known := (*more, *table)):
                raise InputError(f"{name} must be one of {', '.join(known)}, not {value!r}.")
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")
        for name, value in (("estimator", "rollouts"), ("primal", "model")):
            if getattr(self, name) == value and self.mixture not in ("posterior", "auto"):
                raise InputError(
                    f"{name} {value} lives off the log model, which mixture {self.mixture} does not fit; "
                    "take mixture posterior."
                )
        if not 0 <= self.margin < 1:
            raise InputError(f"margin must be in [0, 1), not {self.margin}.")
        if not 0.5 <= self.confidence < 1:
            raise InputError(f"confidence must be in [0.5, 1), not {self.confidence}.")
        for name in ("model_steps", "joint_steps", "components"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if min(self.warm_steps, self.ope_steps, self.temperature) < 0:
            raise InputError("warm_steps, ope_steps and temperature must be at least 0.")
