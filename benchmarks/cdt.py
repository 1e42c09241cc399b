"""Speed and memory of a CDT step, against eager PyTorch written as OSRL writes it.

    python -m benchmarks.cdt [--quick] [--one-thread] [--batch 64]

The released sizes: three blocks of width 128 with eight heads, contexts of 10 steps (40 tokens), dropout
.1, AdamW with clipped gradients; observations 8, actions 2. Both sides gather contexts from arrays in
memory (OSRL's own loader, which cuts them one by one in Python processes, is not timed). Turns and clock
are those of `benchmarks.common`. Peak memory is the largest resident size of a process of its own that
makes ten steps, for either side.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    ACT,
    HORIZON,
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

ROWS, WIDTH, HEADS, BLOCKS, CONTEXT = 60_000, 128, 8, 3, 10


def ours(data: Dataset, batch: int, steps: int) -> Measure:
    """CDT on the engine."""
    from slater.deep.algorithms.cdt import CDT
    from slater.deep.algorithms.cdt_config import CDTConfig

    return engine(CDT(CDTConfig(batch_size=batch)), data, steps, "train")


def torch_eager(data: Dataset, batch: int, steps: int) -> Measure:
    """The same in PyTorch, as OSRL composes it: nn.MultiheadAttention, one module per embedding."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attention = nn.MultiheadAttention(WIDTH, HEADS, 0.1, batch_first=True)
            self.drop = nn.Dropout(0.1)
            self.mlp = nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
            )
            mask = ~torch.tril(torch.ones(4 * CONTEXT, 4 * CONTEXT)).bool()
            self.register_buffer("mask", mask)

        def forward(self, x: Any, padding: Any) -> Any:
            normed = self.norm1(x)
            mixed = self.attention(
                normed, normed, normed, attn_mask=self.mask, key_padding_mask=padding, need_weights=False
            )[0]
            x = x + self.drop(mixed)
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.ModuleList([nn.Linear(n, WIDTH) for n in (1, 1, OBS, ACT)])
            self.time = nn.Embedding(HORIZON + CONTEXT, WIDTH)
            self.norm_in, self.norm_out, self.drop = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.1)
            self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
            self.mean, self.log_std = nn.Linear(WIDTH, ACT), nn.Linear(WIDTH, ACT)
            self.cost = nn.Linear(WIDTH, 2)

        def forward(self, parts: list[Any], when: Any, valid: Any) -> Any:
            time_embedding = self.time(when)
            tokens = [e(part) + time_embedding for e, part in zip(self.embed, parts, strict=True)]
            x = torch.stack(tokens, dim=1).permute(0, 2, 1, 3).reshape(len(when), 4 * CONTEXT, WIDTH)
            padding = ~valid.repeat_interleave(4, dim=1)
            x = self.drop(self.norm_in(x))
            for block in self.blocks:
                x = block(x, padding)
            x = self.norm_out(x).reshape(len(when), CONTEXT, 4, WIDTH)
            state, action = x[:, :, 2], x[:, :, 3]
            return self.mean(state), self.log_std(state), torch.log_softmax(self.cost(action), dim=-1)

    model = Model()
    log_beta = torch.tensor(np.log(0.1), requires_grad=True)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda k: min((k + 1) / 500, 1))
    adam_beta = torch.optim.Adam([log_beta], lr=1e-4)
    obs, actions = torch.from_numpy(np.array(data.observations)), torch.from_numpy(np.array(data.actions))
    cost = torch.from_numpy(np.array(data.costs[:, 0]))
    togo = torch.randn(len(obs), 2)

    def step() -> None:
        start = torch.randint(HORIZON, (batch, 1))
        when = start + torch.arange(CONTEXT)
        rows = torch.randint(len(obs) // HORIZON, (batch, 1)) * HORIZON + when.clamp(max=HORIZON - 1)
        valid = when < HORIZON
        a, c = actions[rows], cost[rows].long()
        mean, log_std, log_cost = model([togo[rows][..., :1], togo[rows][..., 1:], obs[rows], a], when, valid)
        p = torch.distributions.Normal(mean, log_std.exp())
        likelihood = p.log_prob(a).sum(-1)[valid].mean()
        entropy = p.entropy().sum(-1)[valid].mean()
        cross = nn.functional.nll_loss(log_cost[valid], c[valid])
        loss = -(likelihood + log_beta.exp().detach() * entropy) + 0.02 * cross
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        adam.step()
        adam_beta.zero_grad()
        (log_beta.exp() * (entropy + ACT).detach()).backward()
        adam_beta.step()
        schedule.step()
        loss.item()  # OSRL logs every step

    return timed(step, steps)


def peak_megabytes(side: str, batch: int) -> float:
    """Largest resident size of a fresh process that makes ten steps."""
    command = [sys.executable, "-m", "benchmarks.cdt", "--peak", side, "--batch", str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure, print and write benchmarks/results/cdt.json."""
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, default=256, help="contexts per step (released: 2048)")
    parser.add_argument("--peak", choices=("ours", "torch"), help="print the peak memory of one side, in MB")
    options = parser.parse_args()
    makers = {"ours": ours, "torch": torch_eager}
    if options.peak:
        makers[options.peak](dataset(ROWS), options.batch, 10)()
        # not getrusage, whose maximum a process inherits from the one that started it
        (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
        print(int(line.split()[1]) / 1024)
        return
    settle_threads(options)
    repeats, steps = (4, 2) if options.quick else (20, 4)
    data = dataset(ROWS)
    best = best_of_turns({who: make(data, options.batch, steps) for who, make in makers.items()}, repeats)
    write_record(
        "cdt",
        options,
        {
            "batch": options.batch,
            "ms_per_step": best["ours"] * 1e3,
            "torch_ms_per_step": best["torch"] * 1e3,
            "times_faster_than_torch": best["torch"] / best["ours"],
            "peak_megabytes": peak_megabytes("ours", options.batch),
            "torch_peak_megabytes": peak_megabytes("torch", options.batch),
        },
    )


if __name__ == "__main__":
    main()
