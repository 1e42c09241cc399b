"""Settings of CDT, and the targets that released code sets by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Config
from slater.errors import InputError

#: OSRL's targets, (return, cost limit) per task, set by hand
RELEASED_TARGETS: Mapping[str, tuple[tuple[float, float], ...]] = {
    "AntCircle": ((300, 10), (350, 20), (400, 40)),
    "AntRun": ((700, 10), (750, 20), (800, 40)),
    "BallCircle": ((700, 10), (750, 20), (800, 40)),
    "BallRun": ((500, 10), (500, 20), (700, 40)),
    "CarCircle": ((450, 10), (500, 20), (550, 50)),
    "CarRun": ((575, 10), (575, 20), (575, 40)),
    "DroneCircle": ((700, 10), (750, 20), (800, 40)),
    "DroneRun": ((400, 10), (500, 20), (600, 40)),
}


@dataclass(frozen=True)
class CDTConfig(Config):
    """Settings of CDT. "released" marks what the preset changes, and to what."""

    steps: int = 20_000
    """gradient iterations (released: 100,000)"""
    batch_size: int = 256
    """contexts per iteration (released: 2048)"""
    hidden: tuple[int, ...] = (128, 128, 128)
    """one entry per transformer block, all the same: the width of the tokens"""
    heads: int = 8
    """attention heads; they divide the width"""
    context: int = 10
    """steps that the model sees at once, four tokens each"""
    dropout: float = 0.1
    """share of embeddings, attention weights and block outputs that is zeroed in training"""
    learning_rate: float = 3e-4
    """of AdamW, after a linear warm-up (released: 1e-4)"""
    warmup: int = 500
    """iterations of warm-up, at most two thirds of all"""
    weight_decay: float = 1e-4
    """of AdamW"""
    clip: float = 0.25
    """largest norm of a gradient"""
    cost_weight: float = 0.02
    """w_c, weight of predicting the step's costs"""
    entropy_start: float = 0.1
    """beta at the start"""
    entropy_rate: float = 1e-4
    """learning rate of log beta"""
    target_entropy: float | None = None
    """target of H in nats; None: -1 per continuous action dimension, or a tenth of log(actions)"""
    cost_sampling: float = 0.8
    """how much rarer the costliest episode is drawn than a free one, in [0, 1)"""
    cost_cap: float | None = None
    """draw episodes by max(0, cap - cost) instead, in cost per episode (released: 70)"""
    augment: float = 0.2
    """relabelled episodes beyond the frontier, as a share of all"""
    headroom: float = 0.1
    """how far relabelled returns go above the best one, as a share of the range of returns"""
    decrease: float = 0.2
    """how far under the frontier an episode may be that stands in for it, as a share of that range"""
    inputs: Literal["standardised", "released"] = "standardised"
    """to-go tokens: less their mean over their standard deviation, or R/10 and 50 - C (released)"""
    targets: Literal["data", "released"] = "data"
    """return to ask for: from the data, or OSRL's table by task (released)"""
    target_quantile: float = 0.9
    """which quantile of the returns of episodes within the limits is asked for"""
    costs_to_go: Literal["data", "budget"] = "data"
    """what a context is told of costs: what its episode was still to cost, or what is left of a limit that
    the episode keeps, drawn anew each time (B2R's realignment)"""
    clip_targets: bool = True
    """keep what is to go within what the model was trained on while acting (released: no)"""
    jump: int | None = None
    """steps dropped from a full context while acting, None: half of it; 1 reuses no keys (released: 1)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.hidden)) > 1 or self.hidden[0] % self.heads:
            raise InputError(
                f"hidden must repeat one width that {self.heads} heads divide, not {self.hidden}."
            )
        if self.jump is not None and not 1 <= self.jump <= self.context:
            raise InputError(f"jump must be from 1 to context ({self.context}), not {self.jump}.")
        for name in ("dropout", "cost_sampling"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be in [0, 1), not {getattr(self, name)}.")
        if not 0 <= self.target_quantile <= 1:
            raise InputError(f"target_quantile must be in [0, 1], not {self.target_quantile}.")


def released_targets(dataset: Dataset | StoredDataset) -> tuple[tuple[float, float], ...]:
    """OSRL's targets for the dataset's task."""
    env = dataset.metadata.env_id or ""
    for task, targets in RELEASED_TARGETS.items():
        if task.lower() in env.lower().replace("-", "").replace("_", ""):
            return targets
    raise InputError(
        f"the released targets of cdt are for {', '.join(RELEASED_TARGETS)}; "
        f"this data is of {env or 'no task'}: set targets to data."
    )
