"""Policies with random weights, of the kinds that no shorter code makes."""

from __future__ import annotations

import itertools

import numpy as np

from slater.policy.candidates import CandidatesPolicy
from slater.policy.sequence import SequencePolicy, Targets


def layers(rng: np.random.Generator, *sizes: int):
    """Weights and biases as training starts them: +-1/sqrt(fan-in)."""
    pairs = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        bound = 1 / np.sqrt(fan_in)
        pairs.append(
            tuple(
                rng.uniform(-bound, bound, shape).astype(np.float32)
                for shape in ((fan_in, fan_out), (fan_out,))
            )
        )
    return tuple(pairs)


def candidates(seed: int) -> CandidatesPolicy:
    rng = np.random.default_rng(seed)
    return CandidatesPolicy(
        layers(rng, 8 + 4, 32, 2), layers(rng, 8 + 2, 32, 2), tuple(layers(rng, 10, 32, 1) for _ in range(4)),
        (0.75, 0.25), np.array([0.7], np.float32), 0.1, 6, 0.5, np.zeros(8, np.float32),
        np.ones(8, np.float32), np.array([-1, -2], np.float32), np.array([1, 3], np.float32),
    )  # fmt: skip


def sequence(costs: int = 1, seed: int = 0) -> SequencePolicy:
    """A transformer of width 8, 3 observations, 2 actions."""
    rng, width = np.random.default_rng(seed), 8
    shapes = {
        "embed.return_weight": (1, width), "embed.cost_weight": (costs, width),
        "embed.obs_weight": (3, width), "embed.action_weight": (2, width),
        "embed.token_bias": (4, width), "embed.time": (10, width),
        "embed.norm_in": (2, width), "embed.norm_out": (2, width), "action_weight": (width, 4),
        "action_bias": (4,), "blocks.0.norm_1": (2, width), "blocks.0.qkv_weight": (width, 3 * width),
        "blocks.0.qkv_bias": (3 * width,), "blocks.0.out_weight": (width, width),
        "blocks.0.out_bias": (width,), "blocks.0.norm_2": (2, width),
        "blocks.0.up_weight": (width, 4 * width),
        "blocks.0.up_bias": (4 * width,), "blocks.0.down_weight": (4 * width, width),
        "blocks.0.down_bias": (width,),
    }  # fmt: skip
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    ones = np.ones(1 + costs, np.float32)
    targets = Targets(rng.random((6, 1 + costs)).astype(np.float32), 0.9, None, 0 * ones, ones, None, None)
    return SequencePolicy(
        arrays=arrays, heads=2, context=4, jump=2, obs_mean=np.zeros(3, np.float32),
        obs_std=np.ones(3, np.float32), low=-np.ones(2, np.float32), high=np.ones(2, np.float32),
        log_std_range=(-5.0, 0.0), targets=targets, limits=np.ones(costs, np.float32),
        cost_names=tuple(f"c{i}" for i in range(costs)),
    )  # fmt: skip
