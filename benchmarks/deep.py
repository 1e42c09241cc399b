"""Speed of a PDCA iteration: against eager PyTorch, against the machine's matrix products, against data size.

    python -m benchmarks.deep [--quick]

Algorithm 2 as printed, batch 512, networks 2 x 256, observations 8, actions 2. The PyTorch side
(torch, extra `bench`) is a plain transcription: eager, one Adam per network.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.common import (
    ACT,
    CLOCK,
    GAMMA,
    OBS,
    Measure,
    arguments,
    best_of_turns,
    dataset,
    engine,
    settle_threads,
    timed,
    write_record,
)
from slater.data import Dataset
from slater.deep.algorithms.pdca import PaperConfig, PaperPDCA

BATCH, WIDTH = 512, 256
C, B, TAU = 5.0, 5.0, 10.0


def ours(data: Dataset, steps: int) -> Measure:
    """Algorithm 2 on the engine."""
    return engine(PaperPDCA(PaperConfig()), data, steps, "train")


def torch_eager(data: Dataset, steps: int) -> Measure:
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

    return timed(step, steps)


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
    options = arguments(__doc__).parse_args()
    settle_threads(options)
    repeats, steps = (8, 3) if options.quick else (40, 5)
    data, rate = dataset(10_000), matrix_rate()
    contestants = {"ours": ours(data, steps), "torch": torch_eager(data, steps)}
    peak = 0.0
    best = dict.fromkeys(contestants, np.inf)
    for _ in range(repeats):  # the matrix products take turns too
        best = {name: min(best[name], now) for name, now in best_of_turns(contestants, 1).items()}
        peak = max(peak, rate())
    sizes = {}
    for rows in (10_000, 1_000_000) if options.quick else (10_000, 1_000_000, 10_000_000):
        measure = ours(dataset(rows), steps)
        sizes[rows] = min(measure() for _ in range(repeats))
    share = operations() / best["ours"] / peak
    ratio = best["torch"] / best["ours"]
    write_record(
        "deep",
        options,
        {
            "ms_per_step": best["ours"] * 1e3,
            "torch_ms_per_step": best["torch"] * 1e3,
            "times_faster_than_torch": ratio,
            "times_faster_if_all_of_the_matrix_rate": ratio / share,
            "matrix_rate_gflops": peak / 1e9,
            "share_of_matrix_rate": share,
            "ms_per_step_by_rows": {str(rows): seconds * 1e3 for rows, seconds in sizes.items()},
            "slowest_over_fastest_by_rows": max(sizes.values()) / min(sizes.values()),
        },
    )


if __name__ == "__main__":
    main()
