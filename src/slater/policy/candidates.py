"""A policy that proposes actions like the data's and takes the best of them, in NumPy (BCQ-Lag).

    v_j = decoder(s, z_j),  z_j ~ N(0, 1) cut to +-latent_cut;   a_j = clip(v_j + phi tanh P(s, v_j), -1, 1)
    act with the a_j of the largest  v_0(s, a_j) - sum_i lambda_i v_i(s, a_j)

v_u is a mixture of the smaller and the larger of two critics. Deterministic means the one proposal of z = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.policy.base import Described, Memoryless
from slater.policy.contract import checked, usable
from slater.policy.layers import Array, Arrays, Layers, Rng, apply_layers, name_layers, read_layers, stretched

F32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class CandidatesPolicy(Described, Memoryless):
    """See the module's text. Observations enter normalised; actions are inside in [-1, 1].

    critics: two per utility, in order; leans: (1+I,) weight of the smaller of the two
    multipliers: (I,); samples: proposals per state; low, high: (action_dim,)
    """

    decoder: Layers
    perturbation: Layers
    critics: tuple[Layers, ...]
    leans: tuple[float, ...]
    multipliers: F32
    phi: float
    samples: int
    latent_cut: float
    obs_mean: F32
    obs_std: F32
    low: F32
    high: F32

    def propose(self, obs: F32, z: F32) -> F32:
        """Actions in [-1, 1] for normalised observations (rows, obs_dim) and z (rows, latent)."""
        v = np.tanh(apply_layers(self.decoder, np.concatenate([obs, z], axis=1)))
        shift = np.tanh(apply_layers(self.perturbation, np.concatenate([obs, v], axis=1)))
        return np.asarray(np.clip(v + self.phi * shift, -1.0, 1.0), dtype=np.float32)

    def score(self, obs: F32, actions: F32) -> F32:
        """v_0 - sum_i lambda_i v_i, shape (rows,)."""
        x = np.concatenate([obs, actions], axis=1)
        values = []
        for u, lean in enumerate(self.leans):
            pair = [apply_layers(layers, x)[:, 0] for layers in self.critics[2 * u : 2 * u + 2]]
            values.append(lean * np.minimum(*pair) + (1.0 - lean) * np.maximum(*pair))
        return np.asarray(values[0] - self.multipliers @ np.stack(values[1:]), dtype=np.float32)

    @np.errstate(over="ignore", invalid="ignore")  # `usable` says it in words
    def act(self, observations: Array, *, rng: Rng, deterministic: bool = False) -> Array:
        """Actions of shape `(batch, action_dim)` inside `[low, high]`."""
        x = checked(observations, len(self.obs_mean))
        obs = (x - self.obs_mean) / self.obs_std
        latent, n = len(self.decoder[0][0]) - len(self.obs_mean), 1 if deterministic else self.samples
        z = np.zeros((len(obs) * n, latent), dtype=np.float32)
        if not deterministic:
            z = np.clip(rng.standard_normal(z.shape, dtype=np.float32), -self.latent_cut, self.latent_cut)
        repeated = np.repeat(obs, n, axis=0)
        actions = self.propose(repeated, z)
        usable(actions.reshape(len(obs), -1), x)
        if n > 1:
            best = np.argmax(usable(self.score(repeated, actions).reshape(len(obs), n), x), axis=1)
            actions = actions.reshape(len(obs), n, -1)[np.arange(len(obs)), best]
        return stretched(actions, self.low, self.high)

    def __repr__(self) -> str:
        sizes = f"{len(self.obs_mean)} observations -> {len(self.low)} actions"
        return f"<CandidatesPolicy: {sizes}, the best of {self.samples} proposals>"

    def tensors(self) -> dict[str, Array]:
        """Every array of the policy, by name."""
        named = {name: getattr(self, name) for name in ("obs_mean", "obs_std", "low", "high", "multipliers")}
        networks = {"decoder": self.decoder, "perturbation": self.perturbation}
        networks |= {f"critic_{k}": layers for k, layers in enumerate(self.critics)}
        return named | name_layers(networks)

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON."""
        plain = {name: getattr(self, name) for name in ("phi", "samples", "latent_cut")}
        return {"kind": "candidates", "leans": list(self.leans), **plain}

    @classmethod
    def from_tensors(cls, description: Mapping[str, Any], tensors: Arrays) -> CandidatesPolicy:
        """What `tensors` and `description` gave; ValueError or KeyError if they do not fit together."""
        leans = tuple(float(x) for x in description["leans"])
        policy = cls(
            read_layers(tensors, "decoder"), read_layers(tensors, "perturbation"),
            tuple(read_layers(tensors, f"critic_{k}") for k in range(2 * len(leans))),
            leans, tensors["multipliers"], float(description["phi"]), int(description["samples"]),
            float(description["latent_cut"]), tensors["obs_mean"], tensors["obs_std"],
            tensors["low"], tensors["high"],
        )  # fmt: skip
        # one action shows whether the arrays fit together
        policy.act(np.zeros((1, len(policy.obs_mean))), rng=np.random.default_rng(0))
        return policy
