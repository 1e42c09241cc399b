"""A verdict per limit, and the certificate that holds them.

A verdict is *pass* if an upper bound on the expected cost is within the limit, *fail* if a lower bound is
above it, and *abstain* if neither is so or a gate failed: a condition without which the bound means
nothing. For a policy of given cost only one of pass and fail can be wrong, so each bound may use the whole
error of its statement; the error of a certificate is divided by the number of limits and of candidates
(Bonferroni), so that it bounds the probability that *any* verdict in it is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

from slater.certify.bounds import Interval
from slater.certify.ranges import Ranges
from slater.errors import InputError
from slater.limits import Limit, Units

Verdict = Literal["pass", "fail", "abstain"]
#: who spoke: rollouts or the policy's own episodes; logged propensities; estimators from the log alone; the
#: empirical model of a finite problem
Tier = Literal["rollouts", "propensities", "estimates", "exact"]

#: what the command line ends with, for pipelines; 2 is bad input
EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "abstain": 4}

FORMAT = "slater-certificate-1"

#: what a verdict rests on, in words for somebody who has to decide; estimates say it of every limit
ASSUMED: dict[Tier, str] = {
    "rollouts": "the deployment is like these episodes",
    "propensities": "the log is right about how likely its actions were",
    "exact": "the problem has the states and actions that are stated",
}


@dataclass(frozen=True)
class Gate:
    """A condition of a tier: if it does not hold, the tier abstains, for the reason that it gives."""

    name: str
    passed: bool
    reason: str


@dataclass(frozen=True)
class Evidence:
    """What one estimator says of one cost, in the unit of the limit."""

    estimator: str
    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class LimitVerdict:
    """The verdict on one limit.

    cost, limit, unit: what it may be at most, and what the numbers count, as "per episode".
    verdict: pass, fail or abstain; reason: why, one sentence; tier: who spoke.
    estimate, lower, upper: expected cost of the policy and the bounds that decided, in `unit`.
    gates: the conditions, each with its reason; evidence: every estimator that was asked.
    share_over: upper bound on the share of episodes over the limit, where episodes were run; it and the
    verdict share the error.
    condition: what an upper bound takes for granted, as the end of a sentence after "if".
    """

    cost: str
    limit: float
    unit: str
    verdict: Verdict
    estimate: float
    lower: float
    upper: float
    tier: Tier
    reason: str
    gates: tuple[Gate, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    share_over: float | None = None
    condition: str = ""

    @classmethod
    def of(
        cls, cost: str, limit: float, interval: Interval, tier: Tier, gates: Sequence[Gate] = (),
        evidence: Sequence[Evidence] = (), *, unit: str = "per episode", **more: Any,
    ) -> LimitVerdict:  # fmt: skip
        """What an interval allows (`decide`); more: other fields."""
        verdict, reason = decide(interval, limit, gates)
        return cls(
            cost, float(limit), unit, verdict, *interval, tier, reason, tuple(gates), tuple(evidence), **more
        )

    def at_most(self, ceiling: float) -> LimitVerdict:
        """The verdict where an episode is known to cost at most `ceiling`."""
        if self.upper <= ceiling:
            return self
        interval = Interval(min(self.estimate, ceiling), self.lower, ceiling)
        verdict, reason = self.verdict, self.reason
        if verdict == "abstain":
            verdict, reason = decide(interval, self.limit, self.gates)
        return replace(self, verdict=verdict, reason=reason, estimate=interval.estimate, upper=ceiling)

    @property
    def stated(self) -> str:
        """The limit in words, as "15 per episode"."""
        return f"{self.limit:g} {'as a discounted sum' if self.unit == 'discounted' else self.unit}"

    def __str__(self) -> str:
        return f"{self.verdict.upper()}  {self.cost} <= {self.stated}: {self.reason}"


def unit_notes(limits: Sequence[Limit], per_episode: Sequence[float]) -> list[str]:
    """What is taken for granted where a limit was not given per episode."""
    notes = {
        "step": "on the steps lived: a step that an episode does not live because it ended counts as {0:g}, "
        "and the sum is compared with {1:g}.",
        "discounted": "judged as {1:.4g} per episode, the same for costs at an even rate.",
    }
    each = zip(limits, per_episode, strict=True)
    return [f"the limit {x} is {notes[x.unit].format(x.value, y)}" for x, y in each if x.unit in notes]


def episode_limit(limit: Limit, gamma: float | None, horizon: int) -> float:
    """A limit per episode of `horizon` steps; one on a discounted sum needs to know the discount."""
    if limit.unit == "discounted" and gamma is None:
        raise InputError(
            f"the limit {limit} is on a discounted sum, and nothing says the discount of this policy: state "
            "the limit per episode."
        )
    return Units(0.99 if gamma is None else gamma, horizon).episode(limit)


def under_range(verdict: LimitVerdict, ranges: Ranges, number: int, horizon: int) -> LimitVerdict:
    """The verdict with the condition that its upper bound is under; without a range there is no pass."""
    unknown = ranges.unknown(number)
    if unknown and verdict.verdict == "abstain" and all(gate.passed for gate in verdict.gates):
        return replace(verdict, reason=unknown)
    return replace(verdict, condition=ranges.condition(number, horizon))


def error_of_each(confidence: float, limits: int, candidates: int = 1, share: float = 1.0) -> float:
    """The error of one statement, so that all of `limits` x `candidates` hold with `confidence`.

    share: of the error that the certificate has, where others have the rest (`slater.certify.ledger`).
    """
    given: Any = confidence
    if not (isinstance(given, Real) and 0.5 <= float(given) < 1.0):
        raise InputError(f"the confidence is {given}; it must be from 0.5 to below 1, for example 0.95.")
    if limits < 1 or candidates < 1:
        raise InputError(f"a certificate needs a limit and a candidate, not {limits} and {candidates}.")
    return share * (1.0 - confidence) / (limits * candidates)


def decide(interval: Interval, limit: float, gates: Iterable[Gate] = ()) -> tuple[Verdict, str]:
    """The verdict that an interval allows, and why, in one sentence."""
    closed = [gate for gate in gates if not gate.passed]
    if closed:
        return "abstain", closed[0].reason
    if interval.upper <= limit:
        return "pass", f"the upper bound {interval.upper:.4g} is within the limit {limit:.4g}."
    if interval.lower > limit:
        return "fail", f"the lower bound {interval.lower:.4g} is above the limit {limit:.4g}."
    least, most = interval.lower, interval.upper
    left = f"{least:.4g}" + (f" to {most:.4g}" if math.isfinite(most) else " up")
    return "abstain", f"by this evidence it may be anything from {left}."


@dataclass(frozen=True, repr=False)
class Certificate:
    """What may be said of one policy and its limits.

    policy: what was judged, as a path or a name; limits: one verdict per limit.
    confidence: with at least this probability no verdict is wrong (for the tier "estimates": the aim, whose
    measured rate is in docs/results-verdicts.md).
    candidates: how many policies were judged together; the error is divided by it.
    evidence_from, assumptions: where the evidence is from, and what is taken for granted, a sentence each.
    details: what pictures need besides, plain JSON.
    digest: of the policy's file as it was judged (`slater.disk.digest_of`); "" for a function.
    """

    policy: str
    confidence: float
    limits: tuple[LimitVerdict, ...]
    candidates: int = 1
    evidence_from: str = ""
    assumptions: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    @property
    def verdict(self) -> Verdict:
        """Fail if any limit fails, pass if all pass, otherwise abstain."""
        verdicts = {limit.verdict for limit in self.limits}
        if "fail" in verdicts:
            return "fail"
        return "pass" if verdicts == {"pass"} else "abstain"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 4 abstain."""
        return EXIT_CODES[self.verdict]

    @property
    def percent(self) -> str:
        """The confidence as it was asked for: 99.5% is not 100%."""
        return f"{100.0 * self.confidence:.10g}%"

    @property
    def sentence(self) -> str:
        """One sentence for somebody who has to decide."""
        by = {v: [x for x in self.limits if x.verdict == v] for v in get_args(Verdict)}
        # an estimate's confidence is an aim with a measured rate, not a guarantee: it must not read as one
        tier = self.limits[0].tier
        sure = f"with {self.percent} confidence"
        if tier == "estimates":
            sure = f"by an estimate that aims at {self.percent} confidence"
        given = f", provided that {ASSUMED[tier]}" if tier in ASSUMED else ""
        if by["fail"]:
            worst = by["fail"][0]
            return (
                f"Do not deploy: {sure}, the mean {worst.cost} is above {worst.stated} "
                f"(at least {worst.lower:.4g}){given or (worst.condition and f', if {worst.condition}')}."
            )
        if by["abstain"]:
            first = by["abstain"][0]
            return f"No verdict on whether the mean {first.cost} is within {first.stated}: {first.reason}"
        kept = ", and ".join(
            f"the mean {x.cost} is within {x.stated} (at most {x.upper:.4g})"
            + (x.condition and f", if {x.condition}")
            for x in self.limits
        )
        return f"Within limits: {sure}, {kept}{given}."

    def __repr__(self) -> str:
        return f"<Certificate of {self.policy}: {self.verdict.upper()}. {self.sentence}>"

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<tr><td>{escape(x.cost)}</td><td>{x.limit:.4g} {escape(x.unit)}</td><td>{x.estimate:.4g}</td>"
            f"<td>{x.lower:.4g} to {x.upper:.4g}</td><td>{x.verdict.upper()}</td></tr>"
            for x in self.limits
        )
        head = "".join(f"<th>{name}</th>" for name in ("cost", "limit", "estimate", "between", "verdict"))
        return f"<p><b>{escape(self.sentence)}</b></p><table><tr>{head}</tr>{lines}</table>"

    def table(self) -> str:
        """One line per limit, then its gates."""
        header = ("cost", "limit", "estimate", "lower", "upper", "verdict", "by")
        rows: list[tuple[str, ...]] = [header]
        for x in self.limits:
            numbers = ("-" if math.isnan(n) else f"{n:.4g}" for n in (x.estimate, x.lower, x.upper))
            rows.append((x.cost, f"{x.limit:.4g} {x.unit}", *numbers, x.verdict, x.tier))
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        for limit in self.limits:
            lines += [
                f"{limit.cost}: {'met    ' if gate.passed else 'NOT MET'} {gate.name}: {gate.reason}"
                for gate in limit.gates
            ]
            if limit.share_over is not None:
                lines.append(
                    f"{limit.cost}: at most {limit.share_over:.1%} of episodes cost more than {limit.limit:g}"
                )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain JSON, with the verdict and the sentence in front."""
        first = {"format": FORMAT, "verdict": self.verdict, "sentence": self.sentence}
        return first | _plain(asdict(self))

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON; atomic."""
        from slater.disk import write_atomic

        write_atomic(path, (json.dumps(self.as_dict(), indent=1) + "\n").encode())

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Certificate:
        """What `as_dict` gave."""
        if record.get("format") != FORMAT:
            raise InputError(
                f"this is no certificate of this version: its format is {record.get('format')!r}, "
                f"not {FORMAT!r}."
            )
        limits = tuple(_limit_verdict(limit) for limit in record["limits"])
        if not limits or not {limit.verdict for limit in limits} <= set(EXIT_CODES):
            raise InputError("this is no certificate: it has no limits, or a verdict that there is not.")
        return cls(
            record["policy"], float(record["confidence"]), limits, record["candidates"],
            record["evidence_from"],
            tuple(record["assumptions"]), dict(record["details"]), str(record.get("digest", "")),
        )  # fmt: skip

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read what `save` wrote."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except (OSError, ValueError, KeyError, TypeError) as error:  # an InputError is a ValueError
            said = str(error).rstrip(".")
            raise InputError(f"{path} is not readable as a certificate ({said}).") from error


def _limit_verdict(record: Mapping[str, Any]) -> LimitVerdict:
    def numbers(record: Mapping[str, Any]) -> dict[str, Any]:
        """With numbers where JSON has none: infinity is a text, and what is not a number is null."""
        names = record.keys() & {"limit", "estimate", "lower", "upper"}
        return {**record, **{x: math.nan if record[x] is None else float(record[x]) for x in names}}

    gates = tuple(Gate(**gate) for gate in record["gates"])
    evidence = tuple(Evidence(**numbers(one)) for one in record["evidence"])
    return LimitVerdict(**numbers({**record, "gates": gates, "evidence": evidence}))


def _plain(value: Any) -> Any:
    """JSON knows neither infinity nor what is not a number: the first as text, the second as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def with_gate(certificate: Certificate, gate: Gate) -> Certificate:
    """The certificate under one more condition, which every limit of it needs."""
    closed: dict[str, Any] = {} if gate.passed else {"verdict": "abstain", "reason": gate.reason}
    limits = (replace(limit, gates=(gate, *limit.gates), **closed) for limit in certificate.limits)
    return replace(certificate, limits=tuple(limits))
