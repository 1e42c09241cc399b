"""`slater demo`: PDCA on the data that come with Slater, judged in the simulator, ending with a figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from slater.commands.parse import parse
from slater.disk import digest_of
from slater.errors import InputError
from slater.runs import Result, is_run, open_run, read_result, read_run

if TYPE_CHECKING:
    from slater.certify.verdict import Certificate
    from slater.data import Dataset
    from slater.envs import Rollout

__all__ = ["DemoArgs", "run"]

ENV = "bullet/BallCircle"
#: iterations between rollouts of the policy in training, which only the figure sees
EVERY = 2_000
#: PDCA's default: from all starts once, and from the best two once more
STEPS = 14_030
#: its other settings
SETTINGS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class DemoArgs:
    """Learn from 300 logged episodes of bullet/BallCircle under a cost limit, in a few minutes.

    The simulator is used only to show what the policies are really worth; learning sees the log alone. Stop
    it with Ctrl-C and give the same command to go on.

    Examples:
        slater demo
        slater demo --limit 40 --out runs/loose
        slater demo --tabular --seed 3

    """

    limit: str = "20"
    """limit on the cost, per episode (or 5/discounted, 0.05/step)"""
    steps: int = STEPS
    """gradient iterations: warm start, then rounds of 501 from policies of the log; each leaves a policy"""
    seed: int = 3
    """seed of the run, or of the tabular problem and its data"""
    out: Path = Path("runs/demo")
    """folder of the run and of the figure"""
    episodes: int = 40
    """episodes of the last evaluation, per policy"""
    tabular: bool = False
    """a small random problem instead, where the exact optimum is known; takes seconds"""
    n: int = 2000
    """logged transitions of the tabular problem"""


def run(args: list[str]) -> int:
    """Entry point of `slater demo`."""
    options = parse(DemoArgs, args, "demo")
    if options.tabular:
        from slater.commands.demo_tabular import tabular_demo

        return tabular_demo(options.seed, options.n, options.out)
    from slater.threads import use_one_thread

    use_one_thread()
    from slater.data import load
    from slater.data.samples import ballcircle

    console = Console(soft_wrap=True)
    data = load(ballcircle())
    console.print(
        f"{data.size:,} steps of {ENV} in {len(data.episodes)} episodes; limit on the cost: {options.limit}. "
        f"Learning from the log alone; results go to {options.out}.\n",
        highlight=False,
    )
    try:
        result = _train(data, options)
    except KeyboardInterrupt:
        if is_run(options.out):
            console.print(f"\nStopped; what is done is in {options.out}: give the same command to go on.")
        raise
    _report(console, data, result, options)
    return 0


def _train(data: Dataset, options: DemoArgs) -> Result:
    from slater.data.samples import ballcircle
    from slater.deep import resume, train
    from slater.deep.engine.progress import shown
    from slater.envs import make

    make(ENV).close()  # without the simulator, say so before minutes of training
    if is_run(options.out):
        before = read_run(options.out)
        if (before.seed, before.limits, before.settings.get("steps")) != (
            options.seed, _limits(data, options), options.steps,
        ):  # fmt: skip
            raise InputError(f"{options.out} holds another run; choose another folder with --out.")
        if (finished := read_result(options.out)) is not None:
            return finished
        return resume(options.out, data, shown())
    return train(
        "pdca", data, [options.limit], options.out, seed=options.seed, watcher=shown(),
        options={"env": ENV, "eval_every": EVERY, "data": str(ballcircle())},
        steps=options.steps, **SETTINGS,
    )  # fmt: skip


def _limits(data: Dataset, options: DemoArgs) -> tuple[str, ...]:
    from slater.limits import resolve_limits

    return tuple(map(str, resolve_limits([options.limit], data.cost_names)))


def _report(console: Console, data: Dataset, result: Result, options: DemoArgs) -> None:
    from slater import policy as policies
    from slater.envs import rollout
    from slater.report.training import Level, draw_training

    saved = open_run(options.out)
    (limit,) = result.limits
    assert limit.episode is not None
    assert limit.discounted is not None
    found: dict[str, Rollout] = {}
    for name, file in (("mixture", "mixture"), ("last policy", "policy")):
        policy = policies.load(options.out / f"{file}.safetensors")
        with console.status(f"{options.episodes} episodes of the {name}"):
            found[name] = rollout(policy, ENV, options.episodes, seed=0, discount=saved.task.gamma)

    # narrow enough for a terminal of 80 columns: no lines between the columns
    table = Table(title="What came out, per episode unless said otherwise", box=None)
    for name in ("", "return", "cost", "limit", "estimated cost"):
        table.add_column(name, justify="left" if name in ("", "limit") else "right", no_wrap=True)
    estimates = {
        "mixture": (result.per_episode or {}).get("cost"),
        "last policy": saved.metrics.last("ope/cost")["ope/cost"] * limit.episode / limit.discounted,
    }
    for name, ran in found.items():
        summary = ran.summary()
        cost, estimate = summary["cost"], estimates[name]
        table.add_row(
            name, f"{summary['return'].mean:.0f} ± {summary['return'].standard_error:.0f}",
            f"{cost.mean:.1f} ± {cost.standard_error:.1f}", _verdict(cost.mean, limit.episode),
            "" if estimate is None else f"{estimate:.1f}",
        )  # fmt: skip
    episodes = data.episodes
    costs = episodes.costs.sum(axis=1)
    safe = costs <= limit.episode
    best = None
    if safe.any():
        index = int(np.where(safe, episodes.returns, -np.inf).argmax())
        best = float(episodes.returns[index])
        table.add_row(
            "best safe episode in data", f"{best:.0f}", f"{costs[index]:.1f}",
            _verdict(costs[index], limit.episode), "",
        )  # fmt: skip
    table.add_row(
        "mean episode in data", f"{episodes.returns.mean():.0f}", f"{costs.mean():.1f}",
        _verdict(float(costs.mean()), limit.episode), "",
    )  # fmt: skip
    units = ", ".join(
        f"{getattr(limit, unit):.4g} {word}"
        for unit, word in (
            ("episode", "per episode"), ("discounted", "discounted"), ("step", "per step"),
            ("normalised", "normalised"),
        )
    )  # fmt: skip
    console.print(f"\nlimit: {units}", highlight=False)
    console.print(table)
    console.print(
        "The estimate is from the log alone: episodes in models of it, checked on groups of its episodes.",
        highlight=False,
    )
    path = options.out / "demo.png"
    levels = {
        name: Level(ran.summary()["return"].mean, ran.summary()["cost"].mean) for name, ran in found.items()
    }
    logged = np.stack([episodes.returns, costs], axis=1)
    draw_training(path, saved.metrics.rows, limit, levels, best, logged)
    console.print(f"\nReward and cost against steps, with the limit: {path}")
    with console.status("episodes of the mixture until its limit is decided"):
        certificate = _certificate(options, saved.task.gamma)
    console.print(f"\nVerdict: {certificate.sentence}", highlight=False)
    console.print(f"By {certificate.evidence_from}", highlight=False)
    console.print(f"Its picture: {options.out / 'certificate.html'}; the same again with")
    most = 10 * options.episodes
    console.print(f"    slater certify {options.out} --env {ENV} --until-decided --at-most {most}")
    console.print(f"The policy: {options.out / 'mixture.safetensors'}; evaluate it again with")
    console.print(f"    slater evaluate {options.out} --episodes 100")


def _certificate(options: DemoArgs, gamma: float) -> Certificate:
    """The verdict on the mixture by episodes that run until there is one, written beside the policy."""
    from slater import policy as policies
    from slater.certify.rollouts import certify_rollouts
    from slater.report.certificate import certificate_html

    certificate = certify_rollouts(
        policies.load(options.out / "mixture.safetensors"), ENV, limits=[options.limit], gamma=gamma,
        at_most=10 * options.episodes, name=str(options.out),
    )  # fmt: skip
    certificate = replace(certificate, digest=digest_of(options.out / "mixture.safetensors"))
    certificate.save(options.out / "certificate.json")
    (options.out / "certificate.html").write_text(certificate_html(certificate.as_dict()))
    return certificate


def _verdict(cost: float, limit: float) -> str:
    return "[green]met[/]" if cost <= limit else "[red]exceeded[/]"
