"""Speed and memory of the rivals' iterations against eager PyTorch written as released code writes them.

    python -m benchmarks.rivals [--quick] [--one-thread] [--only NAME]

Per iteration, same sizes (batch 512, networks 2 x 256, CVAE 2 x 400, observations 8, actions 2, ensembles of
2; CAPS 2 x 512, TraC 96 segments of an episode), ratios inside one run: see `benchmarks.common`. The engine
runs the authors' preset, which computes what the PyTorch side computes; the repaired default is timed beside
it. (PDOCRL's computes more: released code has neither an adversary nor a critic of the cost alone. O3SRL and
WSAC have no contest, since none of their authors' code could be read.) The PyTorch side (torch, extra
`bench`) draws its minibatch by index, which is kind to it: released code reads one row at a time. Peak memory
is the largest resident size of a process of its own that makes ten steps. A contest is one line in
`CONTESTS`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    ACT,
    GAMMA,
    OBS,
    RESULTS,
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

BATCH, WIDTH = 512, 256
LIMIT = 4.33  # 10 per episode of 200 steps, as a discounted sum


def on_engine(name: str, preset: str | None, data: Dataset, steps: int) -> Measure:
    """An algorithm on the engine, in its main phase."""
    # here, so that the memory of the PyTorch side is measured without JAX
    from slater.deep.algorithms.registry import make_algorithm

    return engine(make_algorithm(name, {}, preset), data, steps, "classify" if name == "trac" else "train")


class Batches:
    """Minibatches of a dataset as tensors, drawn by index."""

    def __init__(self, data: Dataset) -> None:
        import torch

        starts = np.zeros(data.size, dtype=np.float32)
        starts[data.episodes.starts] = 1.0
        done = (data.terminals | data.timeouts).astype(np.float32)
        columns = (
            data.observations, data.next_observations, data.actions,
            data.rewards, data.costs[:, 0], done, starts,
        )  # fmt: skip
        self.columns = [torch.from_numpy(np.array(column)) for column in columns]

    def draw(self) -> Any:
        import torch

        rows = torch.randint(len(self.columns[0]), (BATCH,))
        return (column[rows] for column in self.columns)


def mlp(inputs: int, outputs: int, width: int = WIDTH) -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


def torch_coptidice(data: Dataset, steps: int) -> Measure:
    """COptiDICE: two nu, two chi, lambda, tau, each group with its Adam; then weighted cloning."""
    import torch
    from torch import nn
    from torch.distributions import Normal
    from torch.nn import functional

    batches, alpha, epsilon = Batches(data), 0.5, 0.01
    nus, chis = (nn.ModuleList([mlp(OBS, 1), mlp(OBS, 1)]) for _ in range(2))
    actor = mlp(OBS, 2 * ACT)
    lam, tau = (torch.ones(1, requires_grad=True) for _ in range(2))
    adam_nu, adam_chi, adam_pi = (torch.optim.Adam(net.parameters(), lr=1e-4) for net in (nus, chis, actor))
    adam_lam, adam_tau = torch.optim.Adam([lam], lr=1e-4), torch.optim.Adam([tau], lr=1e-4)
    obs_std, act_std = (column.std(0, keepdim=True) for column in (batches.columns[0], batches.columns[2]))

    def least(nets: Any, s: Any) -> Any:
        return torch.min(torch.cat([net(s) for net in nets], dim=-1), dim=-1).values

    def f(w: Any) -> Any:
        return torch.where(w < 1, w * (torch.log(w + 1e-10) - 1) + 1, 0.5 * (w - 1) ** 2)

    def step() -> None:
        s, s2, a, r, c, done, first = batches.draw()
        share = first.mean() + 1e-10
        nu, nu2 = least(nus, s), least(nus, s2)
        e = r - functional.softplus(lam).detach() * c + GAMMA * (1 - done) * nu2 - nu
        w = functional.relu(
            torch.where(e / alpha < 0, torch.exp(torch.clamp(e / alpha, max=0.0)), e / alpha + 1)
        )
        loss_nu = (1 - GAMMA) * (nu * first).mean() / share + (w * e - alpha * f(w)).mean()
        adam_nu.zero_grad()
        loss_nu.backward()
        adam_nu.step()
        fixed = w.detach()
        chi, chi2 = least(chis, s), least(chis, s2)
        ell = (1 - GAMMA) * chi * first / share + fixed * (c + GAMMA * (1 - done) * chi2 - chi)
        v = BATCH * torch.softmax(ell / functional.softplus(tau).detach(), dim=0)
        kl = (v * torch.log(v + 1e-10) - v + 1).mean()
        loss_chi = (v * ell).mean() - (functional.softplus(tau) * (kl.detach() - epsilon)).sum()
        adam_chi.zero_grad()
        adam_tau.zero_grad()
        loss_chi.backward()
        adam_chi.step()
        adam_tau.step()
        bound = (v * fixed * c).mean().detach()
        loss_lam = (functional.softplus(lam) * (LIMIT - bound)).sum()
        adam_lam.zero_grad()
        loss_lam.backward()
        adam_lam.step()
        noisy_s, noisy_a = s + 0.1 * obs_std * torch.randn_like(s), a + 0.1 * act_std * torch.randn_like(a)
        mean, log_std = actor(noisy_s).chunk(2, dim=-1)
        likelihood = Normal(mean, log_std.clamp(-20, 2).exp()).log_prob(noisy_a).sum(-1)
        loss_pi = -(fixed * likelihood).mean()
        adam_pi.zero_grad()
        loss_pi.backward()
        adam_pi.step()
        # released code stores these in its log in every iteration
        _ = [x.item() for x in (loss_nu, loss_chi, loss_lam, loss_pi, kl)]

    return timed(step, steps)


def torch_cpq(data: Dataset, steps: int) -> Measure:
    """CPQ: CVAE, reward critics, cost critics, actor, three soft updates."""
    import copy

    import torch
    from torch import nn
    from torch.distributions import Normal
    from torch.nn import functional

    batches, latent, draws = Batches(data), 2 * ACT, 10
    encoder, decoder = mlp(OBS + ACT, 2 * latent, 400), mlp(OBS + latent, ACT, 400)
    critics, cost_critics = (nn.ModuleList([mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)]) for _ in range(2))
    actor = mlp(OBS, 2 * ACT)
    online = (critics, cost_critics, actor)
    old = tuple(copy.deepcopy(net) for net in online)
    adam_vae = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    adam_q, adam_qc = (torch.optim.Adam(net.parameters(), lr=1e-3) for net in (critics, cost_critics))
    adam_pi = torch.optim.Adam(actor.parameters(), lr=1e-4)
    log_alpha = 0.0

    def normal(s: Any) -> Any:
        mean, log_std = actor(s).chunk(2, dim=-1)
        return Normal(mean, log_std.clamp(-20, 2).exp())

    def encode(s: Any, a: Any) -> Any:
        mean, log_std = encoder(torch.cat([s, a], dim=-1)).chunk(2, dim=-1)
        return mean, log_std.clamp(-4, 15)

    def values(nets: Any, s: Any, a: Any) -> list[Any]:
        x = torch.cat([s, a], dim=-1)
        return [net(x).squeeze(-1) for net in nets]

    def least(nets: Any, s: Any, a: Any) -> Any:
        return torch.min(*values(nets, s, a))

    def descend(adam: Any, loss: Any) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()

    def step() -> None:
        nonlocal log_alpha
        s, s2, a, r, c, done, _ = batches.draw()
        mean, log_std = encode(s, a)
        z = mean + log_std.exp() * torch.randn_like(mean)
        kl = -0.5 * (1 + 2 * log_std - mean**2 - (2 * log_std).exp()).mean()
        loss_vae = functional.mse_loss(torch.tanh(decoder(torch.cat([s, z], dim=-1))), a) + 0.5 * kl
        descend(adam_vae, loss_vae)
        with torch.no_grad():
            a2 = torch.tanh(normal(s2).rsample())
            safe = (least(old[1], s2, a2) <= LIMIT).float()
            goal = r + GAMMA * (1 - done) * safe * least(old[0], s2, a2)
        loss_q = sum(functional.mse_loss(q, goal) for q in values(critics, s, a))
        descend(adam_q, loss_q)
        with torch.no_grad():
            a2 = torch.tanh(normal(s2).rsample())
            cost_goal = c + GAMMA * least(old[1], s2, a2)
            many = s.unsqueeze(1).expand(-1, draws, -1).reshape(-1, OBS)
            sampled = normal(many).sample()
            m, ls = encode(many, sampled)
            distance = -0.5 * (1 + 2 * ls - m**2 - (2 * ls).exp()).mean(dim=-1)
            unlike = (distance >= torch.quantile(distance, 0.75)).float()
            penalty = (least(old[1], many, sampled) * unlike).mean() - 1.5 * LIMIT
        alpha = float(np.exp(log_alpha))
        loss_qc = sum(functional.mse_loss(q, cost_goal) for q in values(cost_critics, s, a)) - alpha * penalty
        descend(adam_qc, loss_qc)
        log_alpha = float(np.clip(log_alpha - 1e-4 * alpha * penalty.item(), -5, 5))
        for net in (critics, cost_critics):
            for parameter in net.parameters():
                parameter.requires_grad = False
        a_pi = torch.tanh(normal(s).rsample())
        loss_pi = -((least(cost_critics, s, a_pi) <= LIMIT).float() * least(critics, s, a_pi)).mean()
        descend(adam_pi, loss_pi)
        for net in (critics, cost_critics):
            for parameter in net.parameters():
                parameter.requires_grad = True
        with torch.no_grad():
            for net, slow in zip(online, old, strict=True):
                for now, before in zip(net.parameters(), slow.parameters(), strict=True):
                    before.data.copy_(0.005 * now.data + 0.995 * before.data)
        # released code stores these in its log in every iteration
        _ = [x.item() for x in (loss_vae, loss_q, loss_qc, loss_pi)]

    return timed(step, steps)


def follow(slow: Any, now: Any, rate: float = 0.005) -> None:
    """Polyak's step of the networks `slow` towards `now`, parameter by parameter."""
    for before, after in zip(slow.parameters(), now.parameters(), strict=True):
        before.data.copy_(rate * after.data + (1 - rate) * before.data)


def torch_caps(data: Dataset, steps: int) -> Measure:
    """CAPS with IQL and two heads: twin Q and V of reward and cost, then both heads on one trunk."""
    import copy

    import torch
    from torch import nn
    from torch.nn import functional

    batches, wide = Batches(data), 512
    q = nn.ModuleList([nn.ModuleList([mlp(OBS + ACT, 1, wide) for _ in range(2)]) for _ in range(2)])
    v = nn.ModuleList([mlp(OBS, 1, wide) for _ in range(2)])
    old = copy.deepcopy(q)
    trunk = nn.Sequential(nn.Linear(OBS, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU())
    heads = nn.ModuleList([nn.Linear(wide, ACT) for _ in range(2)])
    adam_q = [torch.optim.Adam(pair.parameters(), lr=3e-4) for pair in q]
    adam_v = [torch.optim.Adam(net.parameters(), lr=3e-4) for net in v]
    adam_pi = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=3e-4)

    def descend(adam: Any, loss: Any) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()

    def step() -> None:
        s, s2, a, r, c, done, _ = batches.draw()
        x, gains, losses = torch.cat([s, a], dim=-1), [], []
        for k, u in enumerate((0.1 * r, -c)):
            with torch.no_grad():
                least, ahead = torch.min(*(net(x) for net in old[k])), v[k](s2).squeeze(-1)
            away = least - v[k](s)
            loss_v = (torch.abs(0.7 - (away < 0).float()) * away**2).mean()
            descend(adam_v[k], loss_v)
            goal = u + GAMMA * (1 - done) * ahead
            loss_q = sum(functional.mse_loss(net(x).squeeze(-1), goal) for net in q[k]) / 2
            descend(adam_q[k], loss_q)
            gains.append(away.detach().squeeze(-1))
            losses += [loss_v, loss_q]
        weights = [torch.exp(3 * gain).clamp(max=100) for gain in gains]
        hidden = trunk(s)
        each = [
            (w * ((torch.tanh(head(hidden)) - a) ** 2).sum(-1)).mean()
            for w, head in zip(weights, heads, strict=True)
        ]
        loss_pi = torch.stack(each).mean()
        descend(adam_pi, loss_pi)
        follow(old, q)
        _ = [x.item() for x in (*losses, loss_pi)]

    return timed(step, steps)


def torch_trac(data: Dataset, steps: int) -> Measure:
    """TraC in its second phase: 96 whole episodes told apart, dropout in pi and none in pi_ref."""
    import copy

    import torch
    from torch import nn

    segments, length, episodes = 96, data.horizon, len(data.episodes)
    obs, actions = (
        torch.from_numpy(np.array(column)).reshape(episodes, length, -1)
        for column in (data.observations, data.actions)
    )
    safe = torch.from_numpy(data.episodes.costs[:, 0] <= 20.0)
    good, bad = (np.flatnonzero(safe.numpy() == side) for side in (True, False))
    layers: list[Any] = []
    for size in (OBS, WIDTH):
        layers += [nn.Linear(size, WIDTH), nn.ReLU(), nn.Dropout(0.25)]
    pi = nn.Sequential(*layers, nn.Linear(WIDTH, ACT), nn.Tanh())
    reference = copy.deepcopy(pi).eval()
    adam = torch.optim.Adam(pi.parameters(), lr=1e-5)
    decay, rng = 0.99 ** torch.arange(length), np.random.default_rng(0)

    def step() -> None:
        half = segments // 2
        which = torch.from_numpy(np.concatenate([rng.choice(one, half) for one in (good, bad)]))
        s, a = obs[which], actions[which]
        y = torch.cat([torch.ones(half), torch.zeros(half)])
        with torch.no_grad():
            before = -((reference(s) - a) ** 2).sum(-1)
        likely = -((pi(s) - a) ** 2).sum(-1)
        right = torch.sigmoid(0.2 * (decay * (likely - before)).sum(-1))
        loss = -(
            y * torch.log(right.clamp(min=1e-6)) + 0.25 * (1 - y) * torch.log((1 - right).clamp(min=1e-6))
        ).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        loss.item()

    return timed(step, steps)


def torch_pdocrl(data: Dataset, steps: int) -> Measure:
    """PDOCRL as released: w, two Q by a TD error weighted with w, the actor, and log lambda."""
    import copy

    import torch
    from torch import nn
    from torch.distributions import Normal
    from torch.nn import functional

    batches = Batches(data)
    actor, w = mlp(OBS, 2 * ACT), mlp(OBS + ACT, 1)
    critics = nn.ModuleList([mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)])
    old = copy.deepcopy(critics)
    log_lam = torch.zeros(1, requires_grad=True)
    adam_w, adam_q, adam_pi = (torch.optim.Adam(net.parameters(), lr=3e-4) for net in (w, critics, actor))
    adam_lam = torch.optim.Adam([log_lam], lr=1e-3)

    def act(s: Any) -> Any:
        mean, log_std = actor(s).chunk(2, dim=-1)
        return torch.tanh(Normal(mean, log_std.clamp(-20, 2).exp()).rsample())

    def least(nets: Any, s: Any, a: Any) -> Any:
        x = torch.cat([s, a], dim=-1)
        return torch.min(*(net(x).squeeze(-1) for net in nets))

    def descend(adam: Any, loss: Any, net: Any) -> None:
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        adam.step()

    def step() -> None:
        s, s2, a, r, c, _, _ = batches.draw()
        x, lam = torch.cat([s, a], dim=-1), log_lam.exp().clamp(max=10.0).detach()
        with torch.no_grad():
            goal = 0.1 * r - lam * c + GAMMA * least(old, s2, act(s2))
            gain = goal - least(critics, s, a)
        ratio = functional.softplus(w(x).squeeze(-1)).clamp(max=10.0)
        loss_w = -(ratio * gain).mean()
        descend(adam_w, loss_w, w)
        fixed = ratio.detach()
        loss_q = sum((fixed * (net(x).squeeze(-1) - goal) ** 2).mean() for net in critics)
        descend(adam_q, loss_q, critics)
        loss_pi = -least(critics, s, act(s)).mean()
        descend(adam_pi, loss_pi, actor)
        loss_lam = -(log_lam * (c.mean() - LIMIT * (1 - GAMMA)).detach()).sum()
        adam_lam.zero_grad()
        loss_lam.backward()
        adam_lam.step()
        follow(old, critics)
        _ = [x.item() for x in (loss_w, loss_q, loss_pi, loss_lam)]

    return timed(step, steps)


#: name -> (preset that computes the same, the PyTorch side)
CONTESTS: dict[str, tuple[str, Callable[[Dataset, int], Measure]]] = {
    "coptidice": ("released", torch_coptidice),
    "cpq": ("released", torch_cpq),
    "caps": ("released", torch_caps),
    "trac": ("published", torch_trac),
    "pdocrl": ("released", torch_pdocrl),
}


def peak_megabytes(name: str, side: str) -> float:
    """Largest resident size of a fresh process that makes ten steps."""
    command = [sys.executable, "-m", "benchmarks.rivals", "--only", name, "--peak", side]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure, print and write benchmarks/results/rivals.json."""
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=list(CONTESTS), help="one contest only")
    parser.add_argument("--peak", choices=("ours", "torch"), help="print the peak memory of one side, in MB")
    options = parser.parse_args()
    repeats, steps = (6, 5) if options.quick else (30, 10)
    data = dataset(10_000)
    if options.peak:
        preset, other = CONTESTS[options.only]
        (on_engine(options.only, preset, data, 10) if options.peak == "ours" else other(data, 10))()
        # not getrusage, whose maximum a process inherits from the one that started it
        (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
        print(int(line.split()[1]) / 1024)
        return
    settle_threads(options)
    # a contest that is run alone leaves the others' figures as they are
    file = RESULTS / ("rivals-one-thread.json" if options.one_thread else "rivals.json")
    results: dict[str, Any] = json.loads(file.read_text()) if options.only and file.exists() else {}
    results = {name: results[name] for name in CONTESTS if name in results}
    for name in [options.only] if options.only else CONTESTS:
        preset, other = CONTESTS[name]
        contestants = {
            "ours": on_engine(name, preset, data, steps),
            "ours_default": on_engine(name, None, data, steps),
            "torch": other(data, steps),
        }
        best = best_of_turns(contestants, repeats)
        results[name] = {
            **{f"{who}_ms": seconds * 1e3 for who, seconds in best.items()},
            "times_faster": best["torch"] / best["ours"],
            "times_faster_default": best["torch"] / best["ours_default"],
            "peak_megabytes": peak_megabytes(name, "ours"),
            "torch_peak_megabytes": peak_megabytes(name, "torch"),
        }
        write_record("rivals", options, results)


if __name__ == "__main__":
    main()
