"""The policy of a decision transformer, in NumPy: it remembers its episode and counts down its targets.

At each step it is told what is still to come: the return it should still earn, and what each cost may
still add up to. Both start from the limits (`with_limits` gives the same model other ones) and are
reduced by what the episode brings. The network is that of `slater.deep.nets.transformer`; keys and values of
earlier tokens are kept, so that an action costs four new tokens. A context that is full drops its oldest
`jump` steps and is then computed anew from what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.errors import InputError
from slater.policy.base import Described
from slater.policy.budget import Budget, Ledger, checked_limits
from slater.policy.contract import RangeCheck, check_range, checked, usable
from slater.policy.layers import Array, Arrays, Rng, stretched

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Targets:
    """How to ask for a return under limits, and how to-go numbers become tokens.

    episodes: (E, 1+I) return and costs of the training episodes, per episode
    quantile: of the returns of episodes within the limits, the one to ask for
    table: (return, limit) pairs set by hand, instead of the above; one cost only
    centre, spread: (1+I,) a token is (togo - centre) / spread
    least, most: (1+I,) what is to go is kept within these while acting; None: it is not
    """

    episodes: F32
    quantile: float
    table: tuple[tuple[float, float], ...] | None
    centre: F32
    spread: F32
    least: F32 | None
    most: F32 | None

    def target_return(self, limits: F32) -> float:
        """The return to ask for under `limits` (I,) per episode.

        Where no episode keeps the limits: the return of the one that exceeds them least.
        """
        if self.table is not None:
            for target, limit in self.table:
                if np.all(limits == limit):
                    return float(target)
            known = ", ".join(f"{limit:g}" for _, limit in self.table)
            raise InputError(
                f"the released targets are for limits {known}, not {limits.tolist()}; "
                "train with targets=data for any limit."
            )
        returns, costs = self.episodes[:, 0], self.episodes[:, 1:]
        within = np.all(costs <= limits, axis=1)
        if within.any():
            return float(np.quantile(returns[within], self.quantile))
        return float(returns[np.argmin(np.max(costs / np.maximum(limits, 1.0), axis=1))])


@dataclass(frozen=True, eq=False, repr=False)
class SequencePolicy(Described):
    """A decision transformer that aims at `limits` (I,), in cost per episode.

    arrays: the network's weights by name; low, high: (action_dim,) bounds, None for discrete actions;
    cost_names: of the costs that it counts down, in the order of `limits`.
    """

    arrays: Mapping[str, F32]
    heads: int
    context: int
    jump: int
    obs_mean: F32
    obs_std: F32
    low: F32 | None
    high: F32 | None
    log_std_range: tuple[float, float]
    targets: Targets
    limits: F32
    cost_names: tuple[str, ...]

    # -- targets ------------------------------------------------------------------------------------------

    @property
    def target_return(self) -> float:
        """The return that an episode starts by asking for."""
        return self.targets.target_return(self.limits)

    @property
    def budget(self) -> Budget:
        """What is left of a limit is the limit less what was spent."""
        return Budget("horizon", len(self.arrays["embed.time"]), 0.0)

    def with_limits(self, limits: Sequence[float]) -> SequencePolicy:
        """The same model aiming at other limits, one per cost, in cost per episode."""
        return replace(self, limits=checked_limits(limits, len(self.limits)).astype(np.float32))

    # -- the network --------------------------------------------------------------------------------------

    def tokens(self, kind: int, values: F32, time: int) -> F32:
        """Embedded tokens, (batch, width), of raw `values` (batch, .): kind 0 R, 1 C, 2 s, 3 a."""
        name = ("return", "cost", "obs", "action")[kind]
        when = self.arrays["embed.time"][min(time, len(self.arrays["embed.time"]) - 1)]
        x = values @ self.arrays[f"embed.{name}_weight"] + self.arrays["embed.token_bias"][kind] + when
        return _normed(x, self.arrays["embed.norm_in"])

    @np.errstate(over="ignore", invalid="ignore")
    def step_tokens(self, togo: F64, observations: Array, time: int) -> list[F32]:
        """R, C and s tokens of one step; togo (batch, 1+I), observations (batch, obs_dim), both raw."""
        left = togo
        if self.targets.least is not None and self.targets.most is not None:
            left = np.clip(togo, self.targets.least, self.targets.most)
        scaled = ((left - self.targets.centre) / self.targets.spread).astype(np.float32)
        obs = ((observations - self.obs_mean) / self.obs_std).astype(np.float32)
        shown = (scaled[:, :1], scaled[:, 1:], obs)
        return [self.tokens(kind, values, time) for kind, values in enumerate(shown)]

    def action_token(self, actions: Array, time: int) -> F32:
        """Tokens of actions in the data's units, (batch, action_dim) or (batch,)."""
        if self.low is None or self.high is None:
            choices = np.eye(len(self.arrays["embed.action_weight"]), dtype=np.float32)[actions]
        else:
            choices = (2.0 * (actions - self.low) / (self.high - self.low) - 1.0).astype(np.float32)
        return self.tokens(3, choices, time)

    @np.errstate(over="ignore", invalid="ignore")  # `usable` says it in words
    def forward(self, tokens: Sequence[F32], cache: list[tuple[F32, F32]] | None) -> tuple[F32, list[Any]]:
        """Action outputs at the last token, (batch, outputs), and the cache with the new keys and values."""
        x = np.stack(tokens, axis=1)
        batch, new, width = x.shape
        size, blocks = width // self.heads, 0
        grown: list[tuple[F32, F32]] = []
        while f"blocks.{blocks}.norm_1" in self.arrays:
            part = {name: self.arrays[f"blocks.{blocks}.{name}"] for name in _BLOCK}
            qkv = _normed(x, part["norm_1"]) @ part["qkv_weight"] + part["qkv_bias"]
            q, k, v = np.moveaxis(qkv.reshape(batch, new, 3, self.heads, size), (2, 3), (0, 2))
            if cache is not None:
                k = np.concatenate([cache[blocks][0], k], axis=2)
                v = np.concatenate([cache[blocks][1], v], axis=2)
            grown.append((k, v))
            old = k.shape[2] - new
            scores = q @ np.swapaxes(k, 2, 3) / np.float32(np.sqrt(size))
            scores[..., np.arange(old + new) > old + np.arange(new)[:, None]] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            mixed = np.swapaxes(weights @ v, 1, 2).reshape(batch, new, width)
            x = x + mixed @ part["out_weight"] + part["out_bias"]
            inner = _gelu(_normed(x, part["norm_2"]) @ part["up_weight"] + part["up_bias"])
            x = x + inner @ part["down_weight"] + part["down_bias"]
            blocks += 1
        last = _normed(x[:, -1], self.arrays["embed.norm_out"])
        return last @ self.arrays["action_weight"] + self.arrays["action_bias"], grown

    def actions_of(self, outputs: F32, rng: Rng, deterministic: bool) -> Array:
        """Actions in the data's units from the network's outputs."""
        if self.low is None or self.high is None:
            logits = outputs if deterministic else outputs + rng.gumbel(size=outputs.shape)
            return np.asarray(np.argmax(logits, axis=-1), dtype=np.int64)
        mean, log_std = np.split(outputs, 2, axis=-1)
        if not deterministic:
            noise = rng.standard_normal(mean.shape, dtype=np.float32)
            mean = np.asarray(mean + np.exp(np.clip(log_std, *self.log_std_range)) * noise, dtype=np.float32)
        return stretched(np.clip(mean, -1.0, 1.0), self.low, self.high)

    # -- acting -------------------------------------------------------------------------------------------

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> Array:
        """Actions for unrelated observations, each the first of an episode of its own."""
        x = checked(observations, len(self.obs_mean))
        togo = np.tile(np.append(self.target_return, self.limits), (len(x), 1))
        outputs, _ = self.forward(self.step_tokens(togo, x, 0), None)
        usable(outputs, x)
        return self.actions_of(outputs, rng, deterministic)

    def begin(self, *, rng: Rng, deterministic: bool = False) -> _SequenceActor:
        """Start an episode with an empty context and the full targets."""
        return _SequenceActor(self, rng, deterministic)

    # -- on disk ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return (
            f"<SequencePolicy: {len(self.obs_mean)} observations, context {self.context}, "
            f"limits {self.limits.tolist()} per episode>"
        )

    def tensors(self) -> dict[str, Array]:
        """Every array of the policy, by name."""
        named: dict[str, Array | None] = {f"net.{name}": array for name, array in self.arrays.items()}
        named |= {name: getattr(self, name) for name in ("obs_mean", "obs_std", "limits", "low", "high")}
        named |= {n: getattr(self.targets, n) for n in ("episodes", "centre", "spread", "least", "most")}
        return {name: array for name, array in named.items() if array is not None}

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return {
            "kind": "sequence", "heads": self.heads, "context": self.context, "jump": self.jump,
            "log_std_range": list(self.log_std_range), "quantile": self.targets.quantile,
            "table": self.targets.table, "cost_names": list(self.cost_names),
        }  # fmt: skip

    @classmethod
    def from_tensors(cls, description: Mapping[str, Any], tensors: Arrays) -> SequencePolicy:
        """What `tensors` and `description` gave; ValueError or KeyError if they do not fit together."""
        arrays = {name[4:]: array for name, array in tensors.items() if name.startswith("net.")}
        table = description["table"]
        targets = Targets(
            tensors["episodes"], float(description["quantile"]),
            table and tuple((float(a), float(b)) for a, b in table),
            tensors["centre"], tensors["spread"], tensors.get("least"), tensors.get("most"),
        )  # fmt: skip
        low, high = (float(x) for x in description["log_std_range"])
        policy = cls(
            arrays, int(description["heads"]), int(description["context"]), int(description["jump"]),
            tensors["obs_mean"], tensors["obs_std"], tensors.get("low"), tensors.get("high"), (low, high),
            targets, tensors["limits"], tuple(map(str, description["cost_names"])),
        )  # fmt: skip
        if not 1 <= policy.jump <= policy.context:
            raise ValueError("the context does not fit its jump")
        if len(policy.cost_names) != len(policy.limits):
            raise ValueError("the names of costs do not fit the limits")
        # one action shows whether the arrays fit together
        policy.act(np.zeros((1, len(policy.obs_mean))), rng=np.random.default_rng(0))
        return policy


_BLOCK = (
    "norm_1", "qkv_weight", "qkv_bias", "out_weight", "out_bias",
    "norm_2", "up_weight", "up_bias", "down_weight", "down_bias",
)  # fmt: skip


def _normed(x: F32, scale_and_shift: F32) -> F32:
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + np.float32(1e-5))
    return np.asarray(centred / spread * scale_and_shift[0] + scale_and_shift[1])


def _gelu(x: F32) -> F32:
    inner = np.float32(np.sqrt(2.0 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (np.float32(1.0) + np.tanh(inner)))


class _SequenceActor:
    """One episode of a `SequencePolicy`: its context, its cache, and what is still to come."""

    def __init__(self, policy: SequencePolicy, rng: Rng, deterministic: bool) -> None:
        self.policy, self.rng, self.deterministic = policy, rng, deterministic
        self.cost_names = policy.cost_names
        self.ledger = Ledger(policy.budget, policy.limits)
        self.wanted = policy.target_return  # the return still to earn
        self.steps: list[list[F32]] = []  # embedded tokens of the steps in the context
        self.cache: list[Any] | None = None
        self.seen = 0  # tokens of the context that are in the cache

    def act(self, observation: Array, *, check: RangeCheck = "ignore") -> Array:
        policy, time = self.policy, self.ledger.time
        check_range(observation, policy.contract, check)
        obs = checked(np.asarray(observation)[None], len(policy.obs_mean))[0]
        self.ledger.take_step()
        if len(self.steps) == policy.context:
            self.steps, self.cache, self.seen = self.steps[policy.jump :], None, 0
        self.steps.append(policy.step_tokens(np.append(self.wanted, self.ledger.left)[None], obs[None], time))
        tokens = [token for step in self.steps for token in step]
        outputs, self.cache = policy.forward(tokens[self.seen :], self.cache)
        usable(outputs, obs[None])
        self.seen = len(tokens)
        action = policy.actions_of(outputs, self.rng, self.deterministic)
        self.steps[-1].append(policy.action_token(action, time))
        return np.asarray(action[0])

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        self.ledger.spend(costs)
        self.wanted -= float(reward)

    def change_limits(self, limits: ArrayLike) -> None:
        """Other limits, (I,), in cost per episode, from now on; what was spent and earned stays so."""
        earned = self.policy.targets.target_return(self.ledger.limits.astype(np.float32)) - self.wanted
        self.ledger.change_limits(limits)
        self.wanted = self.policy.targets.target_return(self.ledger.limits.astype(np.float32)) - earned
