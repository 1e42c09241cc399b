"""`slater demo`: PDCA on the data that come with Slater, judged in the simulator, ending with a figure."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from slater.commands.parse import parse
from slater.errors import InputError
from slater.runs import Result, is_run, open_run, read_run
from slater.runs.evaluations import Evaluation, add_evaluation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slater.data import Dataset

ENV = "bullet/BallCircle"
#: iterations between rollouts of the policy in training, which only the figure sees
EVERY = 2_000
#: warm start, and two parts of four rounds
STEPS = 6_020


@dataclass(frozen=True)
class DemoArgs:
    """Learn from 300 logged episodes of bullet/BallCircle under a cost limit, in a few minutes.

    The simulator is used only to measure what the policies are worth; learning sees the log alone. Stop
    it with Ctrl-C and give the same command to go on.

    Examples:
        slater demo
        slater demo --limit 40 --out runs/loose

    """

    limit: str = "20"
    """limit on the cost, per episode (or 5/discounted, 0.05/step)"""
    steps: int = STEPS
    """gradient iterations: warm start, then rounds of 501 from policies of the log; each leaves a policy"""
    seed: int = 3
    """seed of the run"""
    out: Path = Path("runs/demo")
    """folder of the run and of the figure"""
    episodes: int = 1000
    """episodes of the verdict at most; it stops when the limit is decided"""


def run(args: list[str]) -> int:
    """Entry point of `slater demo`."""
    options = parse(DemoArgs, args, "demo")
    from slater.threads import use_one_thread

    use_one_thread()
    from slater.data import load
    from slater.data.samples import ballcircle

    console = Console(soft_wrap=True)
    data = load(ballcircle())
    console.print(
        "A ball rolls round a circle: the faster, the more return. Every step outside its zone costs 1.\n"
        f"Limit on the cost: {options.limit}. The log: {len(data.episodes)} episodes of other policies, "
        f"{data.size:,} steps of {ENV}, most of them above the limit.\n"
        f"A policy is learned from the log alone. Results go to {options.out}.\n",
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
    from slater.deep.engine.progress import shown
    from slater.envs import make
    from slater.jobs.sweep import TrainJob
    from slater.limits import resolve_limits

    make(ENV).close()  # without the simulator, say so before minutes of training
    if is_run(options.out):
        before = read_run(options.out)
        if (before.seed, before.limits, before.settings.get("steps")) != (
            options.seed, resolve_limits(options.limit, data.cost_names), options.steps,
        ):  # fmt: skip
            raise InputError(f"{options.out} holds another run; choose another folder with --out.")
    job = TrainJob(
        options.out, "pdca", str(ballcircle()), (options.limit,), {"steps": options.steps}, seed=options.seed,
        options={"env": ENV, "eval_every": EVERY, "eval_episodes": 5, "data": str(ballcircle())},
    )  # fmt: skip
    return job.into_folder(data, shown())


def _report(console: Console, data: Dataset, result: Result, options: DemoArgs) -> None:
    from slater.certify.judge import certify
    from slater.report.certificate import save_certificate
    from slater.report.training import Level, draw_training

    saved = open_run(options.out)
    (limit,) = result.limits
    assert limit.episode is not None
    assert limit.discounted is not None
    with console.status("episodes in the simulator, until the limit is decided"):
        certificate = certify(
            options.out, limits=[options.limit], env=ENV, at_most=options.episodes,
            workers=min(2, os.cpu_count() or 1),
        )  # fmt: skip
    save_certificate(options.out, certificate)
    returns, costs = (np.ravel(certificate.details[f"episode_{what}"]) for what in ("returns", "costs"))
    both = {"return": returns, limit.cost: costs}
    means, errors = {n: float(x.mean()) for n, x in both.items()}, {n: _error(x) for n, x in both.items()}
    known = {name: None if math.isnan(error) else error for name, error in errors.items()}
    # kept with the run, as `slater evaluate` does
    ran = Evaluation("mixture", ENV, len(costs), 0, False, None, means, known, digest=certificate.digest)
    add_evaluation(saved.folder, ran)
    learned = Level(means["return"], means[limit.cost])
    told = result.per_episode
    estimated = None if told is None else Level(told["reward"], told[limit.cost])
    episodes = data.episodes
    logged = np.stack([episodes.returns, episodes.costs.sum(axis=1)], axis=1)
    safe = logged[logged[:, 1] <= limit.episode]
    best = safe[safe[:, 0].argmax()] if len(safe) else None

    table = Table(title="Per episode", box=None)
    for name in ("", "return", "cost", f"limit {limit.episode:g}"):
        table.add_column(name, justify="right" if name in ("return", "cost") else "left", no_wrap=True)
    most = limit.episode

    def add(what: str, reward: float, cost: float, within: float = most) -> None:
        table.add_row(what, f"{reward:.0f}", f"{cost:.1f}", _verdict(cost, within))

    if estimated is not None:
        add("what was learned, estimated from the log", estimated.reward, estimated.cost)
    table.add_row(
        f"what was learned, {len(returns)} episodes", f"{learned.reward:.0f} ± {errors['return']:.0f}",
        f"{learned.cost:.1f} ± {errors[limit.cost]:.1f}", _verdict(learned.cost, most),
    )  # fmt: skip
    if (reference := result.log_best) is not None:
        within = most + 1e-6
        add("the best mixture of the log's own policies", reference["reward"], reference[limit.cost], within)
    if best is not None:
        add("best logged episode within the limit", *best)
    add("the log on average", *logged.mean(axis=0))
    console.print()
    console.print(table)
    console.print(
        "The estimate is from the log alone: episodes in models of it, checked on groups of its episodes.\n"
        f"The simulator only measured. The limit in other units: {limit.discounted:.4g} discounted, "
        f"{limit.step:.4g} per step.",
        highlight=False,
    )
    path = options.out / "demo.png"
    draw_training(
        path, saved.metrics.rows, limit, learned, estimated, None if best is None else float(best[0]), logged
    )
    console.print(f"\nVerdict: {certificate.sentence}", highlight=False)
    console.print(f"By {certificate.evidence_from}", highlight=False)
    out = options.out
    for what, how in {
        "The picture": path,
        "The certificate": out / "certificate.html",
        "The policy": out / "mixture.safetensors",
        "All of it as a page": f"slater report {out}",
        "What another limit would cost": f"slater frontier {out}",
        "The verdict again": f"slater certify {out} --env {ENV} --until-decided --at-most {options.episodes}",
    }.items():
        console.print(f"{what + ':':31}{how}", highlight=False)


def _error(values: NDArray[np.floating]) -> float:
    """Standard error of the mean of independent values."""
    return float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else math.nan


def _verdict(cost: float, limit: float) -> str:
    return "[green]met[/]" if cost <= limit else "[red]exceeded[/]"
