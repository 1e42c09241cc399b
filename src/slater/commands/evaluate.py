"""`slater evaluate`: run what a run has learned in an environment, and compare with its limits."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from slater.commands.parse import Positional, Repeated, parse_given
from slater.commands.runs import run_table
from slater.errors import InputError
from slater.limits import Limit, Units, resolve_limits
from slater.policy import load, with_limits
from slater.progress import PlainProgress
from slater.runs import SavedRun
from slater.runs.evaluations import Evaluation, add_evaluation
from slater.runs.folder import run_of

if TYPE_CHECKING:
    from slater.envs import Rollout
    from slater.policy import Mixture, SavedPolicy


@dataclass(frozen=True)
class Options:
    """Run a trained policy in an environment; what is measured is kept with its run.

    Examples:
        slater evaluate runs/first --episodes 20
        slater evaluate runs/first --last --env bullet/BallCircle --json
        slater evaluate runs/cdt --limit 10
        slater evaluate runs/first --members --episodes 5

    """

    run: Positional[Path]
    """folder of a run, or a .safetensors policy file"""
    env: str | None = None
    """environment, for example bullet/BallCircle; by default the one that the data came from, if they say"""
    episodes: int = 20
    """episodes to run; with --members, of every kept policy"""
    seed: int = 0
    """seed of the rollouts"""
    limit: Repeated = ()
    """aim at other limits than those of training, as in `slater train`: cdt has one model for all; what
    other runs kept is mixed anew by its estimates"""
    mixture: bool = False
    """evaluate the mixture, one member drawn per episode (the default where there is one)"""
    last: bool = False
    """evaluate the last policy instead of the mixture"""
    deterministic: bool = False
    """act with the most likely action instead of a drawn one"""
    members: bool = False
    """run every kept policy and print it beside its estimate, and what other outputs would be worth:
    the last policy, a uniform mixture, the best by estimate, the best in hindsight"""
    workers: int = 1
    """processes that run episodes side by side"""
    json: bool = False
    """print JSON with every episode instead of a table"""


def run(args: list[str]) -> int:
    """Entry point of `slater evaluate`."""
    options, given = parse_given(Options, args, "evaluate")
    _refuse_without_effect(options, given)
    if not options.run.exists():
        raise InputError(f"there is no run or policy file {options.run}.")
    saved = run_of(options.run)
    # by default where the data of the run, or of a lone policy, came from
    env = options.env or (
        saved.env
        if saved is not None
        else getattr(getattr(load(options.run), "contract", None), "env_id", None)
    )
    if env is None:
        raise InputError("give the environment with --env, for example --env bullet/BallCircle.")
    if options.members:
        return _judge(options, env)
    path = _policy_file(options)
    policy = load(path)
    from slater.envs import rollout

    units, stated = _setting(saved, policy)
    if options.limit and not stated:
        raise InputError("--limit needs a run, or a policy file that names its costs and their limits.")
    if options.limit:
        stated = list(resolve_limits(options.limit, [str(limit.cost) for limit in stated]))
    limits = {str(limit.cost): units.episode(limit) for limit in stated} if units.horizon else {}
    if options.limit:
        policy = _for_limits(policy, limits, saved, options)
    with PlainProgress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("episodes", total=options.episodes)
        result = rollout(
            policy, env, episodes=options.episodes, seed=options.seed, workers=options.workers,
            deterministic=options.deterministic, discount=units.gamma,
            progress=lambda episode: progress.advance(task),
        )  # fmt: skip
    # the DSRL scores are about the scalar cost, so they need a single limit
    limit = next(iter(limits.values())) if len(limits) == 1 else None
    horizon = units.horizon
    verdicts = _verdicts(result, stated, limits, horizon)
    if cut := result.cut_short(horizon):
        print(
            f"slater: warning: {cut} of {len(result)} episodes were cut by the environment's time limit, "
            f"after {result.lengths.max()} steps at most; those of the data have {horizon}: sums per episode "
            "are not those of whole episodes.",
            file=sys.stderr,
        )
    if saved is not None:
        name = "last" if options.last else "mixture" if path.name == "mixture.safetensors" else path.name
        aimed = limits if options.limit else None
        add_evaluation(saved.folder, Evaluation.of(name, path, result, saved.task, aimed))
    if options.json:
        print(json.dumps({"policy": str(path), "limits": verdicts, **result.as_dict(limit)}, indent=1))
        return 0
    print(f"{path}\n{result.describe(limit)}")
    for verdict in verdicts:
        measured = f"{verdict['mean']:.4g} {verdict['unit']}"
        above = f"{verdict['episodes_above']:.0%} of the episodes are above it"
        words = f"{_WORDS[verdict['status']]} the limit {verdict['limit']:g}"
        print(f"{verdict['cost']}: {measured}, {words}; {above}")
    return 0


def _refuse_without_effect(options: Options, given: frozenset[str]) -> None:
    """An option that would do nothing is refused."""
    if options.mixture + options.last + options.members > 1:
        raise InputError("choose one of --mixture, --last and --members.")
    if options.run.is_file():
        for name in sorted(given & {"mixture", "last", "members"}):
            raise InputError(f"--{name} is for the folder of a run; {options.run} is one policy.")
    if options.members:
        for name in sorted(given & {"limit", "deterministic", "workers"}):
            raise InputError(f"--{name} does nothing with --members, which runs every kept policy as it is.")


def _setting(saved: SavedRun | None, policy: SavedPolicy | Mixture) -> tuple[Units, list[Limit]]:
    """Discount, horizon and limits of the run, or those that a lone policy file names."""
    if saved is not None:
        return saved.task.units, [limit.limit for limit in saved.task.limits]
    contract = getattr(policy, "contract", None)
    if contract is None:
        return Units(0.99, None), []
    return Units(contract.gamma, contract.horizon), [Limit.parse(text) for text in contract.limits]


def _for_limits(
    policy: SavedPolicy | Mixture, limits: Mapping[str, float], saved: SavedRun | None, options: Options
) -> SavedPolicy | Mixture:
    """The policy aiming at other limits: its own way if it has one, else the run's policies mixed anew."""
    try:
        return with_limits(policy, list(limits.values()))
    except InputError:
        if saved is None or not saved.finished or options.last:
            raise
    from slater.certify.pools import best_of_runs

    mixture, point = best_of_runs([saved], [Limit.episode(v, k) for k, v in limits.items()])
    shares = ", ".join(f"{weight:.0%} {name}" for name, weight in point.weights.items())
    print(f"the run's policies mixed anew for these limits, by their estimates: {shares}", file=sys.stderr)
    return mixture


def _policy_file(options: Options) -> Path:
    if not options.run.is_dir():
        return options.run
    path = options.run / ("policy.safetensors" if options.last else "mixture.safetensors")
    if not path.is_file():
        raise InputError(
            f"{options.run} has no {path.name}: the run is not finished; continue it with "
            f"slater train --resume {options.run}"
        )
    return path


#: status of a limit -> how it is said before "the limit"
_WORDS = {"within": "within", "above": "ABOVE", "not known": "which does not tell whether it is within"}
#: unit of a limit -> how its measure is called
_UNITS = {
    "episode": "per episode",
    "step": "per step lived",
    "discounted": "discounted, as if episodes went on",
}


def _verdicts(
    result: Rollout, given: Sequence[Limit], limits: Mapping[str, float], horizon: int | None
) -> list[dict[str, Any]]:
    """Each limit, in the unit in which it was given, beside what the episodes cost in that unit."""
    result.mean_costs(list(limits))  # refuses names that the environment does not have
    return [
        {
            "cost": x.cost, "limit": x.value, "mean": result.measured(str(x.cost), horizon)[x.unit],
            "unit": _UNITS[x.unit], "status": str(result.status(x, horizon)),
            "episodes_above": result.share_above(x, horizon),
        }
        for x in given
    ]  # fmt: skip


def _judge(options: Options, env: str) -> int:
    """`--members`: every kept policy, and what other outputs than the run's would be worth."""
    from slater.experiments.members import measure_members

    with PlainProgress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("members", total=None)
        answer = measure_members(
            options.run, env, episodes=options.episodes, seed=options.seed,
            tick=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    if options.json:
        print(json.dumps(answer, indent=1))
        return 0
    for title, rows in (("kept policies", answer["members"]), ("outputs", answer["outputs"])):
        print(f"{title}, sums per episode, {answer['episodes']} episodes of each policy")
        print(run_table(rows))
    print("limits per episode: " + ", ".join(f"{limit:g}" for limit in answer["limits"]))
    return 0
