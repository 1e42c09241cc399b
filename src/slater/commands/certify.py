"""`slater certify`: a verdict per limit, for people and for pipelines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from slater.commands.parse import Positional, Repeated, parse
from slater.errors import InputError

__all__ = ["run"]


@dataclass(frozen=True)
class Options:
    """Say whether a policy keeps its limits: pass, fail or abstain for each, with bounds and reasons.

    The best evidence that is given speaks: episodes of the policy itself (--own FILE, or --env ID to run it),
    else propensities in the data, else estimates from the data, which are shown and decide only where a bank
    of policies of known truth has calibrated them. certificate.json and certificate.html go beside the
    policy. The exit code is 0 for pass, 1 for fail, 4 for abstain, 2 for bad input.

    Examples:
        slater certify runs/first --data ball.hdf5 --limit 20
        slater certify runs/first --env bullet/BallCircle --episodes 100
        slater certify runs/first --env bullet/BallCircle --until-decided --at-most 500
        slater certify runs/first --own pilot.hdf5 --confidence 0.9
        slater certify my_module:controller --env bullet/BallCircle --limit 20

    """

    policy: Positional[str]
    """folder of a run, a .safetensors or .onnx file, or MODULE:FUNCTION"""
    data: str | None = None
    """logged data; by default those of the run, of which the episodes that were held out judge"""
    limit: Repeated = ()
    """limit on a cost, as in `slater train`; by default the run's"""
    confidence: float = 0.95
    """probability with which no verdict is wrong, shared by all limits and candidates"""
    own: str | None = None
    """file of logged episodes of the policy itself, as a staged deployment gives them"""
    env: str | None = None
    """environment to run the policy in, for example bullet/BallCircle"""
    episodes: int = 100
    """episodes to run"""
    until_decided: bool = False
    """run until every limit is decided, instead of a fixed number of episodes"""
    at_most: int = 1000
    """episodes at most, with --until-decided"""
    candidates: int = 1
    """how many policies are judged together to choose one; the error is shared by them"""
    largest_step_cost: float | None = None
    """what a step costs at most; by default the largest in the data (at least 1)"""
    horizon: int | None = None
    """steps of an episode, where neither the data nor the environment say"""
    deterministic: bool = False
    """act with the most likely action instead of a drawn one"""
    seed: int = 0
    """seed of the episodes"""
    workers: int = 1
    """processes that run episodes side by side"""
    out: Path | None = None
    """folder for certificate.json and certificate.html; by default that of the policy"""
    json: bool = False
    """print the certificate as JSON instead of a table"""


def run(args: list[str]) -> int:
    """Entry point of `slater certify`."""
    options = parse(Options, args, "certify")
    from slater.certify.judge import certify, find_policy
    from slater.report.certificate import certificate_html

    if options.until_decided and options.env is None:
        raise InputError("--until-decided runs the policy; add --env, for example --env bullet/BallCircle.")
    subject = find_policy(options.policy)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        total = options.at_most if options.until_decided else options.episodes
        words, count = ("episodes", total) if options.env else ("judging", None)
        bar = progress.add_task(words, total=count)
        found = certify(
            options.policy, options.data, options.limit, confidence=options.confidence, env=options.env,
            episodes=options.episodes, at_most=options.at_most if options.until_decided else None,
            own=options.own, candidates=options.candidates, largest_step_cost=options.largest_step_cost,
            horizon=options.horizon, seed=options.seed, workers=options.workers,
            deterministic=options.deterministic, progress=lambda episode: progress.advance(bar),
        )  # fmt: skip
    folder = options.out or subject.folder
    if folder is not None:
        from slater.disk import write_atomic

        folder.mkdir(parents=True, exist_ok=True)
        found.save(folder / "certificate.json")
        write_atomic(folder / "certificate.html", certificate_html(found.as_dict()).encode())
    if options.json:
        print(json.dumps(found.as_dict(), indent=1))
        return found.exit_code
    print(f"{found.sentence}\n\n{found.table()}\n\n{found.evidence_from}")
    for line in found.assumptions:
        print(f"taken for granted: {line}")
    if folder is not None:
        print(f"certificate.json and certificate.html are in {folder}")
    return found.exit_code
