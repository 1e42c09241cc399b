"""`slater certify`: a verdict per limit, for people and for pipelines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path

from rich.console import Console

from slater.certify.verdict import EXIT_CODES
from slater.commands.parse import Positional, Repeated, parse_given
from slater.commands.reading import Columns
from slater.errors import InputError
from slater.progress import PlainProgress


@dataclass(frozen=True)
class Options:
    """Say whether a policy keeps its limits: pass, fail or abstain for each, with bounds and reasons.

    The best evidence that is given speaks: episodes of the policy itself (--own FILE, or --env ID to run it),
    else propensities in the data, else what the log says, with bounds that were calibrated on tasks of known
    truth. Where it does not decide, it says how many trial episodes would. certificate.json and .html go
    beside the policy. The exit code is 0 for pass, 1 for fail, 4 for abstain, 2 for bad input.

    Examples:
        slater certify runs/first --data ball.hdf5 --limit 20
        slater certify runs/first --env bullet/BallCircle --episodes 100
        slater certify runs/first --env bullet/BallCircle --until-decided --at-most 500
        slater certify runs/first --own pilot.hdf5 --confidence 0.9
        slater certify runs/first --own trial.csv --columns observations=x,v actions=u costs=wear rewards=r
        slater certify my_module:controller --env bullet/BallCircle --limit 20
        slater certify runs/sweep/* --data ball.hdf5 --limit 20

    Of several candidates the exit code is 0 if one passes, 1 if all fail, else 4.

    """

    policy: Positional[tuple[str, ...]]
    """folder of a run, a .safetensors or .onnx file, or MODULE:FUNCTION; several are candidates, which share
    the error and, with the log alone, one fit"""
    data: str | None = None
    """logged data; by default those of the run"""
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
    candidates: int | None = None
    """how many policies are judged to choose one, where that is more than are given here; the error is shared
    by them"""
    largest_step_cost: Repeated = ()
    """NUMBER or NAME=NUMBER: what a step costs at most; by default the largest in the log that trained the
    policy, or what the environment says. Where it is not known, nothing passes"""
    largest_episode_cost: Repeated = ()
    """NUMBER or NAME=NUMBER: what an episode costs at most, where that is less than all of its steps at their
    most; the bounds get narrower"""
    largest_weight: float | None = None
    """with propensities: how many times as likely as in the log an action can be at most under the policy;
    the bounds get narrower. Known by itself where every action was always logged with one probability"""
    plan: bool = False
    """with --own, a trial under way: its bounds hold at all looks together, so that it may be looked at every
    day"""
    horizon: int | None = None
    """steps of an episode; by default as in training, or as the evidence says"""
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
    reading: Columns = field(default_factory=Columns)


def run(args: list[str]) -> int:
    """Entry point of `slater certify`."""
    options, given = parse_given(Options, args, "certify")
    from slater.certify.judge import certify_many
    from slater.certify.subjects import find_policy
    from slater.report.certificate import save_certificate

    if not options.policy:
        raise InputError("name what is to be certified: a run, a policy file or MODULE:FUNCTION.")
    _refuse_unused(options, given)
    subjects = [find_policy(policy) for policy in options.policy]
    several = len(subjects) > 1
    with PlainProgress(console=Console(stderr=True), transient=True) as progress:
        total = options.at_most if options.until_decided else options.episodes
        words, count = ("episodes", total * len(subjects)) if options.env else ("judging", None)
        bar = progress.add_task(words, total=count)
        found = certify_many(
            subjects, options.data, options.limit, confidence=options.confidence, env=options.env,
            episodes=options.episodes, at_most=options.at_most if options.until_decided else None,
            own=options.own, candidates=options.candidates,
            largest_step_cost=options.largest_step_cost or None,
            largest_episode_cost=options.largest_episode_cost or None,
            largest_weight=options.largest_weight, plan=options.plan, horizon=options.horizon,
            reading=options.reading.options(),
            seed=options.seed, workers=options.workers, deterministic=options.deterministic,
            progress=lambda episode: progress.advance(bar),
        )  # fmt: skip
    folders = []
    for number, (subject, certificate) in enumerate(zip(subjects, found, strict=True)):
        folder = options.out / str(number + 1) if several and options.out else options.out or subject.folder
        folders.append(folder)
        if folder is not None:
            save_certificate(folder, certificate)
    verdicts = {one.verdict for one in found}
    # of several candidates: whether there is one to deploy
    code = EXIT_CODES["pass" if "pass" in verdicts else "fail" if verdicts == {"fail"} else "abstain"]
    if options.json:
        records = [one.as_dict() for one in found]
        print(json.dumps(records if several else records[0], indent=1))
        return code
    if several:
        print(f"{len(found)} candidates, which share an error of {1 - options.confidence:.2g}:")
        for one in found:
            for limit in one.limits:
                print(f"  {limit.verdict:8} at most {limit.upper:8.4g}  {limit.cost}  {one.policy}")
        return code
    print(f"{found[0].sentence}\n\n{found[0].table()}\n\n{found[0].evidence_from}")
    for line in found[0].assumptions:
        print(f"taken for granted: {line}")
    for plan in found[0].details.get("plan", ()):
        how = " Record them, and give them with --own FILE --plan." if plan["half"] else ""
        print(f"to do: {plan['sentence']}{how}")
    if folders[0] is not None:
        print(f"certificate.json and .html are in {folders[0]}, earlier ones in certificates.jsonl")
    return code


def _refuse_unused(options: Options, given: frozenset[str]) -> None:
    """An option that the evidence at hand has no use for would be ignored without a word."""
    if options.own is not None and options.env is not None:
        raise InputError("give either --own or --env, not both.")
    running = {"episodes", "until_decided", "at_most", "seed", "workers", "deterministic"}
    if options.env is None and (unused := sorted(running & given)):
        flag = f"--{unused[0].replace('_', '-')}"
        raise InputError(f"{flag} is about running the policy; add --env, for example bullet/BallCircle.")
    if options.plan and options.own is None:
        raise InputError(
            "--plan is about the episodes of a trial; give those that there are with --own FILE. What would "
            "decide is said wherever a limit is left open."
        )
    told = sorted(given & {option.name for option in fields(Columns)})
    if told and options.env:
        flag = f"--{told[0].replace('_', '-')}"
        raise InputError(f"{flag} is about reading a file; give one with --own or --data, not --env.")
    if "data" in given and (options.own or options.env):
        which = "--own" if options.own else "--env"
        raise InputError(f"--data has no part in a verdict by {which}; leave one of them out.")
    if "largest_weight" in given and (options.own or options.env):
        raise InputError("--largest-weight is about a log with propensities; give the log with --data.")
    if options.until_decided and "episodes" in given:
        raise InputError("--episodes is a fixed number; with --until-decided give --at-most.")
    if "at_most" in given and not options.until_decided:
        raise InputError("--at-most goes with --until-decided; for a fixed number give --episodes.")
    if options.candidates is not None and options.candidates < len(options.policy):
        raise InputError(
            f"--candidates is {options.candidates}, and {len(options.policy)} policies are given; leave it "
            "out, or give how many policies there are in all."
        )
