"""Speed of a PDCA iteration: against eager PyTorch, against the machine's matrix products, against data size.

    python -m benchmarks.deep [--quick]

All figures are ratios inside one run, since machines differ and are shared: the contestants take turns in
short blocks, and each keeps its best block, which is what the machine can do when it is left alone. With
`--one-thread` everything uses one core and is timed on the processor's clock: the fair way on a busy
machine. Algorithm 2 as printed, batch 512, networks 2 x 256, observations 8, actions 2. The PyTorch side
(torch, extra `bench`) is a plain transcription: eager, one Adam per network.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from slater.data import Dataset, Metadata
from slater.deep.algorithm import Algorithm
from slater.deep.pdca import PAPER, PDCA, PDCAConfig
from slater.deep.problem import prepare
from slater.deep.sweep import one_thread
from slater.deep.training import compile_chunk, initial_state
from slater.limits import resolve_limits

OBS, ACT, BATCH, WIDTH = 8, 2, 512, 256
#: with one thread, time on the processor: what others on the machine do then hardly matters
CLOCK = time.process_time if "--one-thread" in sys.argv else time.perf_counter
C, B, GAMMA, TAU = 5.0, 5.0, 0.99, 10.0


def dataset(rows: int) -> Dataset:
    """Noise of the right shape: speed does not depend on what the numbers mean."""
    rng = np.random.default_rng(0)
    ends = np.zeros(rows, dtype=bool)
    ends[199::200] = True
    return Dataset.from_arrays(
        observations=rng.standard_normal((rows, OBS), dtype=np.float32),
        actions=rng.uniform(-1, 1, (rows, ACT)).astype(np.float32),
        rewards=rng.random(rows, dtype=np.float32), costs=(rng.random(rows) < 0.1).astype(np.float32),
        terminals=np.zeros(rows, dtype=bool), timeouts=ends,
        next_observations=rng.standard_normal((rows, OBS), dtype=np.float32), metadata=Metadata(horizon=200),
    )  # fmt: skip


def engine(algorithm: Algorithm[Any, Any], data: Dataset, steps: int, phase: str) -> Callable[[], float]:
    """A function that runs `steps` iterations of an algorithm and returns seconds per iteration."""
    problem, transitions = prepare(data, resolve_limits([20.0], data.cost_names), GAMMA)
    on_device = algorithm.data(data, problem, transitions)
    key = jax.random.key(0)
    chunk = compile_chunk(algorithm, problem)
    state = initial_state(algorithm, problem, key)
    # compile before the clock starts
    state, _, _ = chunk((on_device, key), state, jnp.asarray(0), jnp.asarray(1), phase)

    def measure() -> float:
        nonlocal state
        start = CLOCK()
        state, _, _ = chunk((on_device, key), state, jnp.asarray(0), jnp.asarray(steps), phase)
        jax.block_until_ready(eqx.filter(state, eqx.is_array))  # type: ignore[no-untyped-call]
        return (CLOCK() - start) / steps

    return measure


def ours(data: Dataset, steps: int) -> Callable[[], float]:
    """Algorithm 2 on the engine."""
    return engine(PDCA(PDCAConfig(**PAPER)), data, steps, "joint")


def torch_eager(data: Dataset, steps: int) -> Callable[[], float]:
    """The same in PyTorch, written straight from Algorithm 2."""
    import torch
    from torch import nn

    def mlp(inputs: int, outputs: int) -> Any:
        return nn.Sequential(
            nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
        )

    f, g, h, pi = mlp(OBS + ACT, 1), mlp(OBS + ACT, 1), mlp(OBS + ACT, 1), mlp(OBS, 2 * ACT)
    adam = {
        name: torch.optim.Adam(net.parameters(), lr=1e-3) for name, net in zip("fgh", (f, g, h), strict=True)
    }
    adam_pi = torch.optim.Adam(pi.parameters(), lr=1e-4)
    columns = [
        torch.from_numpy(np.array(x)) for x in (data.observations, data.actions, data.next_observations)
    ]
    reward, cost = torch.from_numpy(np.array(data.rewards)), torch.from_numpy(np.array(data.costs[:, 0]))
    initial = torch.from_numpy(np.array(data.initial_observations))
    lam = 0.0

    def act(s: Any) -> Any:
        mean, log_std = pi(s).chunk(2, dim=-1)
        return torch.tanh(mean + log_std.clamp(-20, 2).exp() * torch.randn_like(mean))

    def q(net: Any, s: Any, a: Any) -> Any:
        return net(torch.cat([s, a], dim=-1)).squeeze(-1)

    def E(net: Any, s: Any, a: Any, u: Any, s2: Any) -> Any:
        with torch.no_grad():
            a2 = act(s2)
        delta = q(net, s, a) - u - GAMMA * q(net, s2, a2)
        return C * torch.maximum(delta.relu().mean(), (-delta).relu().mean())

    def A(net: Any, s: Any, a: Any) -> Any:
        with torch.no_grad():
            a_pi = act(s)
        return (q(net, s, a_pi) - q(net, s, a)).mean()

    def step() -> None:
        nonlocal lam
        rows = torch.randint(len(reward), (BATCH,))
        s, a, s2 = (column[rows] for column in columns)
        r, c = reward[rows], cost[rows]
        s0 = initial[torch.randint(len(initial), (BATCH,))]
        losses = {
            "f": lambda: 2 * E(f, s, a, r, s2) + A(f, s, a),
            "g": lambda: 2 * E(g, s, a, c, s2) - A(g, s, a),
            "h": lambda: E(h, s, a, c, s2),
        }
        for name, loss in losses.items():
            adam[name].zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
            adam[name].step()
        a_pi = act(s)
        value = q(f, s, a_pi) + lam * (TAU - q(g, s, a_pi))
        with torch.no_grad():
            base = q(f, s, a) + lam * (TAU - q(g, s, a))
        adam_pi.zero_grad()
        (-(value - base).mean()).backward()
        adam_pi.step()
        with torch.no_grad():
            lam = B if float(q(h, s0, act(s0)).mean()) > TAU else 0.0

    step()

    def measure() -> float:
        start = CLOCK()
        for _ in range(steps):
            step()
        return (CLOCK() - start) / steps

    return measure


def matrix_rate() -> Callable[[], float]:
    """A function that returns the machine's rate at 2048^3, in operations per second."""
    a = jax.random.normal(jax.random.key(0), (2048, 2048))
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()

    def measure() -> float:
        start = CLOCK()
        product(a).block_until_ready()
        return 2 * 2048**3 / (CLOCK() - start)

    return measure


def operations() -> int:
    """Multiplications and additions of the matrix products that one iteration of Algorithm 2 needs.

    A network pass forward costs 2 BATCH sum(in*out); backward the same again per gradient that is needed:
    of the weights, and of the inputs of every layer but the first.
    """

    def forward(*sizes: int) -> int:
        return sum(2 * BATCH * i * o for i, o in itertools.pairwise(sizes))

    def inputs(*sizes: int) -> int:
        return forward(*sizes) - 2 * BATCH * sizes[0] * sizes[1]

    critic, policy = (OBS + ACT, WIDTH, WIDTH, 1), (OBS, WIDTH, WIDTH, 2 * ACT)
    train = 2 * forward(*critic) + inputs(*critic)
    critics = 2 * 3 * train + 2 * train  # f and g at (s,a), (s,pi), (s',pi); h at (s,a), (s',pi)
    # the policy's loss needs f and g at (s,pi), forward and back to the action
    actor = 2 * (2 * forward(*critic)) + 2 * forward(*policy) + inputs(*policy)
    samples = 2 * forward(*policy)  # at s' and s0; at s it is the actor's own pass
    return critics + actor + samples + forward(*critic)  # and h(s0, pi)


def main() -> None:
    """Measure, print and write benchmarks/results/deep.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, data up to 10^6 rows")
    parser.add_argument("--one-thread", action="store_true", help="one core for every contestant")
    options = parser.parse_args()
    quick = options.quick
    if options.one_thread:
        import torch

        os.environ |= one_thread(os.environ)
        torch.set_num_threads(1)
    repeats, steps = (8, 3) if quick else (40, 5)
    data = dataset(10_000)
    contestants = {"ours": ours(data, steps), "torch": torch_eager(data, steps)}
    rate = matrix_rate()
    best = dict.fromkeys(contestants, np.inf)
    peak = 0.0
    for _ in range(repeats):
        for name, measure in contestants.items():
            best[name] = min(best[name], measure())
        peak = max(peak, rate())
    sizes = {}
    for rows in (10_000, 1_000_000) if quick else (10_000, 1_000_000, 10_000_000):
        measure = ours(dataset(rows), steps)
        sizes[rows] = min(measure() for _ in range(repeats))
    share = operations() / best["ours"] / peak
    result = {
        "threads": 1 if options.one_thread else os.cpu_count(),
        "ms_per_step": best["ours"] * 1e3,
        "torch_ms_per_step": best["torch"] * 1e3,
        "times_faster_than_torch": best["torch"] / best["ours"],
        "matrix_rate_gflops": peak / 1e9,
        "share_of_matrix_rate": share,
        "ms_per_step_by_rows": {str(rows): seconds * 1e3 for rows, seconds in sizes.items()},
        "slowest_over_fastest_by_rows": max(sizes.values()) / min(sizes.values()),
    }
    print(json.dumps(result, indent=1))
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    name = "deep-one-thread.json" if options.one_thread else "deep.json"
    (folder / name).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
