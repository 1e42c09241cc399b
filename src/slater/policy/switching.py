"""A policy that switches between heads by its budget, in NumPy (CAPS, Chemingui et al. 2025).

Each step every head proposes an action. Those whose cost-to-go, by the critics, fits what is left of every
limit are kept, and the one of the best reward-to-go is taken; if none fits, the one that exceeds least.
One model serves all limits, and they may change in the middle of an episode (`change_limits` of the actor).
Cost-to-go is that of the cheapest continuation, so that a step may spend what later steps can still save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.policy.base import Described
from slater.policy.budget import Budget, Ledger, checked_limits
from slater.policy.contract import RangeCheck, check_range, checked, usable
from slater.policy.layers import Array, Arrays, Layers, Rng, apply_layers, name_layers, read_layers, stretched

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class SwitchingPolicy(Described):
    """See the module's text. Networks see normalised observations, and the time if the budget ends at T.

    network: K heads side by side: logits, or means and log standard deviations, of each
    critics: per utility, reward first, its copies; cost_scale: (I,) critics give cost times this
    limits: (I,) in cost per episode, of `cost_names`; low, high: (action_dim,) bounds, None if discrete
    clip: whether a cost-to-go below 0 counts as 0 (released code: no)
    """

    network: Layers
    critics: tuple[tuple[Layers, ...], ...]
    heads: int
    budget: Budget
    limits: F32
    cost_scale: F32
    obs_mean: F32
    obs_std: F32
    low: F32 | None
    high: F32 | None
    log_std_range: tuple[float, float]
    clip: bool
    cost_names: tuple[str, ...]

    def with_limits(self, limits: Sequence[float]) -> SwitchingPolicy:
        """The same model under other limits, one per cost, in cost per episode."""
        return replace(self, limits=checked_limits(limits, len(self.limits)).astype(np.float32))

    def noise_shape(self) -> tuple[int, int]:
        """Of the noise of one observation: (heads, action_dim), or (heads, actions)."""
        outputs = self.network[-1][1].shape[0] // self.heads
        return self.heads, outputs if self.low is None else outputs // 2

    def draw_noise(self, rows: int, rng: Rng) -> F32:
        """What `choose` draws actions with: standard normal, or Gumbel for discrete actions."""
        shape = (rows, *self.noise_shape())
        if self.low is None:
            return rng.gumbel(size=shape).astype(np.float32)
        return rng.standard_normal(shape, dtype=np.float32)

    @np.errstate(over="ignore", invalid="ignore")  # `usable` says it in words
    def choose(self, observations: Array, left: F64, time: int, noise: F32 | None) -> Array:
        """Actions for (batch, obs_dim) raw observations at step `time` with `left`, (batch, I), to spend.

        noise: (batch, heads, .) from `draw_noise`; None proposes means, or the likeliest actions.
        """
        x = checked(observations, len(self.obs_mean))
        obs = ((x - self.obs_mean) / self.obs_std).astype(np.float32)
        if self.budget.ends == "horizon":
            entry = np.full((len(obs), 1), 2.0 * time / self.budget.horizon - 1.0, np.float32)
            obs = np.concatenate([obs, entry], axis=1)
        proposed = self._propose(obs, noise)
        reward, costs = self._judge(obs, proposed)
        usable(np.concatenate([reward, costs.reshape(len(obs), -1)], axis=1), x)
        room = (self.budget.in_critic_units(left, time) * self.cost_scale)[:, None]
        excess = (np.maximum(costs, 0.0) if self.clip else costs) - room
        fits = np.all(excess < 0, axis=-1)
        # of those that fit the best reward; where none does, the least excess
        score = np.where(fits, reward, np.where(fits.any(axis=1)[:, None], -np.inf, -excess.max(axis=-1)))
        taken = proposed[np.arange(len(obs)), np.argmax(score, axis=1)]
        if self.low is None or self.high is None:
            return np.asarray(taken, dtype=np.int64)
        return stretched(taken, self.low, self.high)

    def _propose(self, obs: F32, noise: F32 | None) -> Array:
        """One action per head: (batch, heads, action_dim) in [-1, 1], or (batch, heads) indices."""
        out = apply_layers(self.network, obs).reshape(len(obs), self.heads, -1)
        if self.low is None:
            return np.asarray(np.argmax(out if noise is None else out + noise, axis=-1))
        mean, log_std = np.split(out, 2, axis=-1)
        if noise is not None:
            mean = np.asarray(mean + np.exp(np.clip(log_std, *self.log_std_range)) * noise, dtype=np.float32)
        return np.asarray(np.tanh(mean), dtype=np.float32)

    def _judge(self, obs: F32, proposed: Array) -> tuple[F32, F32]:
        """Reward-to-go (batch, heads), the least of copies, and costs-to-go (batch, heads, I), the most."""
        rows = np.repeat(obs, self.heads, axis=0)
        flat = proposed.reshape(len(rows), -1)
        values = []
        for utility, copies in enumerate(self.critics):
            if self.low is None:
                each = [np.take_along_axis(apply_layers(q, rows), flat, axis=1)[:, 0] for q in copies]
            else:
                each = [apply_layers(q, np.concatenate([rows, flat], axis=1))[:, 0] for q in copies]
            values.append((np.min if utility == 0 else np.max)(each, axis=0))
        shaped = np.stack(values, axis=-1).reshape(len(obs), self.heads, -1)
        return shaped[..., 0], shaped[..., 1:]

    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> Array:
        """Actions for unrelated observations, each the first of an episode of its own."""
        rows = len(observations)
        left = np.tile(self.budget.start(self.limits), (rows, 1))
        return self.choose(observations, left, 0, None if deterministic else self.draw_noise(rows, rng))

    def begin(self, *, rng: Rng, deterministic: bool = False) -> _SwitchingActor:
        """Start an episode with the whole budget."""
        return _SwitchingActor(self, rng, deterministic)

    def __repr__(self) -> str:
        return (
            f"<SwitchingPolicy: {len(self.obs_mean)} observations, {self.heads} heads, "
            f"limits {self.limits.tolist()} per episode>"
        )

    def tensors(self) -> dict[str, Array]:
        """Every array of the policy, by name."""
        arrays = ("obs_mean", "obs_std", "limits", "cost_scale", "low", "high")
        named = {name: getattr(self, name) for name in arrays if getattr(self, name) is not None}
        networks = {"network": self.network}
        for utility, copies in enumerate(self.critics):
            networks |= {f"critic_{utility}_{copy}": layers for copy, layers in enumerate(copies)}
        return named | name_layers(networks)

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        return {
            "kind": "switching", "heads": self.heads, "copies": len(self.critics[0]),
            "budget": self.budget.to_json(), "log_std_range": list(self.log_std_range), "clip": self.clip,
            "cost_names": list(self.cost_names),
        }  # fmt: skip

    @classmethod
    def from_tensors(cls, description: Mapping[str, Any], tensors: Arrays) -> SwitchingPolicy:
        """What `tensors` and `description` gave; ValueError or KeyError if they do not fit together."""
        utilities, copies = 1 + len(tensors["limits"]), int(description["copies"])
        each = [[read_layers(tensors, f"critic_{u}_{k}") for k in range(copies)] for u in range(utilities)]
        least, most = (float(x) for x in description["log_std_range"])
        policy = cls(
            read_layers(tensors, "network"), tuple(map(tuple, each)), int(description["heads"]),
            Budget.from_json(description["budget"]), tensors["limits"], tensors["cost_scale"],
            tensors["obs_mean"], tensors["obs_std"], tensors.get("low"), tensors.get("high"),
            (least, most), bool(description["clip"]), tuple(map(str, description["cost_names"])),
        )  # fmt: skip
        if len(policy.cost_names) != len(policy.limits):
            raise ValueError("the names of costs do not fit the limits")
        # one action shows whether the arrays fit together
        policy.act(np.zeros((1, len(policy.obs_mean))), rng=np.random.default_rng(0))
        return policy


class _SwitchingActor:
    """One episode of a `SwitchingPolicy`, and its budget."""

    def __init__(self, policy: SwitchingPolicy, rng: Rng, deterministic: bool) -> None:
        self.policy, self.rng, self.deterministic = policy, rng, deterministic
        self.cost_names = policy.cost_names
        self.ledger = Ledger(policy.budget, policy.limits)

    def act(self, observation: Array, *, check: RangeCheck = "ignore") -> Array:
        check_range(observation, self.policy.contract, check)
        self.ledger.take_step()
        noise = None if self.deterministic else self.policy.draw_noise(1, self.rng)
        rows, left = np.asarray(observation)[None], self.ledger.left[None]
        return np.asarray(self.policy.choose(rows, left, self.ledger.time, noise)[0])

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        del reward
        self.ledger.spend(costs)

    def change_limits(self, limits: ArrayLike) -> None:
        """Other limits, (I,), in cost per episode, from now on; what was spent stays spent."""
        self.ledger.change_limits(limits)
