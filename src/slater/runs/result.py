"""What came out of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slater.disk import read_json, typed, write_json
from slater.errors import InputError
from slater.limit_status import LimitStatus, is_above
from slater.limits import Limit

if TYPE_CHECKING:
    from slater.policy import Mixture, SavedPolicy

#: name of the file in the folder of a run
RESULT = "result.json"


def from_log(kind: str) -> bool:
    """Whether a member of this kind was given by the log itself, after training."""
    return kind.startswith(("clone of ", "in-sample "))


@dataclass(frozen=True)
class LimitRecord:
    """A limit as it was given and in every unit; None where the task does not define the unit."""

    cost: str
    given: str
    episode: float | None
    discounted: float | None
    step: float | None
    normalised: float | None

    @property
    def limit(self) -> Limit:
        """As it was given."""
        return Limit.parse(self.given)


@dataclass(frozen=True)
class Member:
    """A policy that a run kept: the share of episodes that its mixture gives it, and what is known about it.

    kind: "iterate", a policy of the game after iteration `step`; "clone of ..." and "in-sample ...", which
    the log itself gave, with steps beyond the run's last; other algorithms may have other kinds. estimates:
    discounted sums of reward and costs in the data's units, by name, or None. careful: whether they come from
    a separate, converged estimate. spread: by how much the estimate's networks and rollouts disagree, in the
    same units, or None.
    """

    step: int
    kind: str
    weight: float
    estimates: Mapping[str, float] | None = None
    careful: bool = False
    spread: Mapping[str, float] | None = None

    @property
    def name(self) -> str:
        """What it is, for a person."""
        if self.kind.startswith("clone of "):
            whom = self.kind.removeprefix("clone of ")
            return "an imitation of the log" if whom == "the log" else f"an imitation of {whom} of the log"
        if found := re.fullmatch(r"in-sample policy of direction ([\d.]+)((?: [\d.]+)+)(, cold)?", self.kind):
            reward, costs, cold = found.groups()
            wanted = "low costs alone" if reward == "0" else "reward alone"
            if reward != "0" and costs.strip(" 0"):
                wanted = f"reward and costs, weighed {' to '.join((reward, *costs.split()))}"
            return f"an imitation of the log's {'best' if cold else 'better'} actions for {wanted}"
        what = "policy" if self.kind == "iterate" else self.kind
        return f"the {what} after {self.step:,} steps"

    def to_json(self) -> dict[str, Any]:
        """As in `result.json`."""
        names = ("step", "kind", "weight", "careful", "estimates", "spread")
        given = {name: getattr(self, name) for name in names}
        return {n: dict(x) if isinstance(x, Mapping) else x for n, x in given.items() if x is not None}


#: keys of `result.json` that are fields of `Result`; all others are `details`
_FIELDS = (
    "algorithm", "seed", "steps", "limits", "members", "limit_status", "trusted", "mixture_estimates",
    "mixture_per_episode", "warnings",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Result:
    """What came out of a run: its policy, what is estimated about it from the data alone, and warnings.

    limits: in all units; members: every kept policy with its weight in the mixture
    limit_status: cost -> whether its limit is kept, as far as the data tell; set where the run ends
    trusted: whether the estimates passed their check on the data; the warnings say why not
    estimates: estimated discounted sums of reward and costs under the mixture, by name; None: not estimated
    per_episode: the same as sums over a full episode; None where no horizon is known either
    details: what the algorithm adds: certificate, posterior, ...; folder: where the run is
    """

    algorithm: str
    seed: int
    steps: int
    limits: tuple[LimitRecord, ...]
    members: tuple[Member, ...]
    limit_status: Mapping[str, LimitStatus]
    trusted: bool
    estimates: Mapping[str, float] | None = None
    per_episode: Mapping[str, float] | None = None
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def policy(self) -> SavedPolicy | Mixture:
        """The mixture, read from the run's folder: NumPy alone."""
        from slater.policy import load

        if self.folder is None:
            raise InputError("this result has no folder to read its policy from.")
        return load(self.folder / "mixture.safetensors")

    @property
    def weights(self) -> dict[str, float]:
        """Share of episodes by kind of member: {"iterate": .8, "clone of the log": .2}."""
        shares: dict[str, float] = {}
        for member in self.members:
            shares[member.kind] = shares.get(member.kind, 0.0) + member.weight
        return shares

    @property
    def status(self) -> LimitStatus:
        """Whether all limits are kept, as far as it is known."""
        return LimitStatus.of(self.limit_status.values())

    def headline(self) -> str:
        """Whether the limits are kept, in one sentence."""
        above, unknown = (
            [cost for cost, status in self.limit_status.items() if status is one]
            for one in (LimitStatus.ABOVE, LimitStatus.NOT_KNOWN)
        )
        if above:
            return f"ABOVE the limit on {', '.join(above)}, by its own estimate."
        if unknown:
            limits, kept = ("limits", "are") if len(unknown) > 1 else ("limit", "is")
            return f"It is not known whether the {limits} on {', '.join(unknown)} {kept} kept."
        return f"Within {'its limit' if len(self.limits) == 1 else 'every limit'}, as far as the log tells."

    def lines(self) -> list[tuple[str, str, str, str]]:
        """Name, estimate, limit, verdict; per episode where a horizon is known, else discounted."""
        sums = self.estimates if self.per_episode is None else self.per_episode
        limits = {
            limit.cost: limit.discounted if self.per_episode is None and sums is not None else limit.episode
            for limit in self.limits
        }
        lines = []
        for name in sums or dict.fromkeys(("reward", *limits)):
            value, limit = None if sums is None else sums[name], limits.get(name)
            verdict = "" if value is None or limit is None else str(self.limit_status[name])
            if verdict == LimitStatus.ABOVE:
                verdict = verdict.upper()
            elif verdict == LimitStatus.NOT_KNOWN and not self.trusted:
                verdict += ", by estimates that failed their check"
            lines.append((name, _figure(value, "not estimated"), _figure(limit), verdict))
        return lines

    def sums(self) -> dict[str, Any]:
        """The estimates with their unit, as JSON: per episode where a horizon is known, else discounted."""
        found = self.estimates if self.per_episode is None else self.per_episode
        return {} if found is None else {"unit": self._unit, **found}

    @property
    def _unit(self) -> str:
        return "discounted" if self.per_episode is None and self.estimates is not None else "per episode"

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name} {value}{f' of {limit}' if limit else ''}" for name, value, limit, _ in self.lines()
        )
        warned = f"; {len(self.warnings)} warning{'s' * (len(self.warnings) > 1)}" if self.warnings else ""
        return f"<Result of {self.algorithm} in {self.folder}: {parts}, estimated {self._unit}{warned}>"

    @property
    def log_best(self) -> Mapping[str, float] | None:
        """Sums per episode, by name, of the best mixture of the log's own policies within the limits.

        None where it is not known, or no mixture of them is within.
        """
        found = self.details.get("reference") if self._unit == "per episode" else None
        if not found or not found["within_limits"]:
            return None
        names = ("reward", *(limit.cost for limit in self.limits))
        return {name: float(found[name]) for name in names if name in found}

    def _table(self) -> list[tuple[str, ...]]:
        """Header and rows: what was learned, its limits, and beside it the log's best mixture if known."""
        best, rows = self.log_best, [(self._unit, "estimated", "limit", ""), *self.lines()]
        if best is None:
            return [*rows]
        beside = ["the log's best", *(_figure(best.get(name)) for name, *_ in rows[1:])]
        return [(*row[:3], more, row[3]) for row, more in zip(rows, beside, strict=True)]

    def __str__(self) -> str:
        rows = self._table()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        lines = [f"{self.algorithm}, {self.steps:,} steps, seed {self.seed}, in {self.folder}"]
        lines += [self.headline()] if self.limits else []
        for name, *figures, verdict in rows:
            cells = (f"{x:>{width}}" for x, width in zip(figures, widths[1:], strict=True))
            lines.append("  ".join((f"  {name:<{widths[0]}}", *cells, verdict)).rstrip())
        lines += [self.describe_mixture(), *self.single_episodes(), *self.describe_judgement()]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def _repr_html_(self) -> str:
        from html import escape

        rows = self._table()
        cells = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        said = [*self.single_episodes(), *(f"warning: {text}" for text in self.warnings)]
        notes = "".join(f"<br>{escape(text)}" for text in said)
        head = escape(f"{self.algorithm}, {self.steps:,} steps, seed {self.seed}, in {self.folder}")
        word = f"<br><strong>{escape(self.headline())}</strong>" if self.limits else ""
        return f"{head}{word}<table>{cells}</table>{escape(self.describe_mixture())}{notes}"

    def judged(self) -> list[str]:
        """What is known about the mixture from the data, in sentences."""
        if self.estimates is None:
            return ["nothing is estimated about it"]
        by = (self.details.get("estimate") or {}).get("by") or "the algorithm's own estimator"
        sentences = [
            f"estimated {self._unit} from the data by {by}: {name} {value}"
            + (f", limit {limit}, {verdict.lower()}" if limit else "")
            for name, value, limit, verdict in self.lines()
        ]
        return [*sentences, *self.single_episodes(), *(f"warning: {text}" for text in self.warnings)]

    def single_episodes(self) -> list[str]:
        """A sentence for every limit that some policy of the mixture exceeds on average, with its share."""
        sentences = []
        known = [(member.weight, member.estimates) for member in self.members if member.estimates]
        for limit in self.limits:
            most = math.inf if limit.discounted is None else limit.discounted
            above = sum(weight for weight, sums in known if is_above(sums[limit.cost], most))
            if 0 < above < 1:
                sentences.append(
                    f"in {above:.0%} of the episodes a policy acts whose mean {limit.cost} is above the "
                    "limit by its estimate; the mixture is judged on average over episodes"
                )
        return sentences

    def describe_mixture(self) -> str:
        """Which policy acts in how many episodes, in one sentence."""
        weighted = [member for member in self.members if member.weight > 0]
        if len(weighted) == 1:
            return f"one policy acts in every episode ({weighted[0].name})"
        shares = ", ".join(
            f"{member.weight:.0%} {member.name}" for member in sorted(weighted, key=lambda m: -m.weight)[:5]
        )
        more = f", and {len(weighted) - 5} more" if len(weighted) > 5 else ""
        return (
            f"each episode is played by one of {len(weighted)} policies, drawn at its start: {shares}{more}"
        )

    def describe_judgement(self) -> list[str]:
        """What "the log's best" is, and how sure the estimates are, where that is known."""
        lines = []
        if self.log_best is not None:
            lines.append(
                "the log's best: the best mixture of its own policies within the limits, without learning"
            )
            sums = self.per_episode
            if sums is not None and sums["reward"] < self.log_best["reward"] - 0.02 * abs(sums["reward"]):
                lines.append(
                    "it earned more in the log than what was learned is estimated to: there may be luck in "
                    "the one and care in the other; more data or more steps may help"
                )
        elif self.details.get("reference") is not None:
            lines.append("no mixture of the log's own policies is within the limits, by their logged means")
        if (found := self.details.get("posterior")) is not None:
            most = ", ".join(f"{name} at most {_figure(value)}" for name, value in found["at_most"].items())
            each = " each" * (len(found["at_most"]) > 1)
            lines.append(f"with {found['confidence']:.0%} probability{each}, as far as the log tells: {most}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """As in `result.json`."""
        record: dict[str, Any] = {name: getattr(self, name) for name in ("algorithm", "seed", "steps")}
        record["limits"] = [vars(limit) for limit in self.limits]
        record["members"] = [member.to_json() for member in self.members]
        record |= {"limit_status": dict(self.limit_status), "trusted": self.trusted}
        sums = {"mixture_estimates": self.estimates, "mixture_per_episode": self.per_episode}
        record |= {name: dict(found) for name, found in sums.items() if found is not None}
        record |= self.details
        return record | ({"warnings": list(self.warnings)} if self.warnings else {})


def _figure(value: float | None, missing: str = "") -> str:
    return missing if value is None else f"{value:.4g}"


def write_result(folder: Path, result: Result) -> None:
    """Write `result.json`; atomic."""
    write_json(folder / RESULT, result.to_json())


def read_result(folder: str | Path) -> Result | None:
    """The result of the run in `folder`, or None if it is not finished."""
    path = Path(folder) / RESULT
    if not path.is_file():
        return None
    record = read_json(path, "a result")
    try:
        own = {name: record[name] for name in _FIELDS if name in record}
        own |= {name: record.get(f"mixture_{name}") for name in ("estimates", "per_episode")}
        own["details"] = {name: value for name, value in record.items() if name not in _FIELDS}
        result: Result = typed(Result, {**own, "folder": folder})
        members = (member.estimates for member in result.members)
        for sums in (result.limit_status, result.estimates, result.per_episode, *members):
            unknown = [limit.cost for limit in result.limits if sums is not None and limit.cost not in sums]
            if unknown:
                raise ValueError(f"it limits {unknown[0]!r} and says something of {', '.join(sums or ())}")
        shares = [member.weight for member in result.members]
        if any(share < 0 for share in shares) or not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            raise ValueError(f"the shares of its members sum to {sum(shares):g}, not 1")
        return result
    except KeyError as error:
        raise InputError(f"{path} is not readable as a result (it has no {error}).") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{path} is not readable as a result ({error}).") from error
