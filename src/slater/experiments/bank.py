"""The bank of tasks of known truth that calibrates verdicts from the log alone, and what verdicts do
elsewhere.

A task of the bank is a cell of `slater.experiments.worlds`: a bare log of one of the family's random tasks,
the default's run on it, and, of every policy that it kept and of its mixture, what was said and what is so.
Its scores (`slater.certify.conformal`) are the worst of each class. Tasks on which the past matters are not
in the bank, as certificates abstain there.

The same rows of other tasks, and of logs of simulators (`slater.experiments.estimates`), show what verdicts
under a calibration are worth: each policy is judged at its run's limits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.bounds import share_lower, share_upper
from slater.certify.conformal import (
    CLASSES,
    Calibration,
    class_of,
    floored,
    shipped_calibration,
    standardised,
)
from slater.disk import read_json_lines, write_atomic
from slater.errors import InputError
from slater.report.curves import markdown_table

F64 = NDArray[np.float64]
CELLS, SETTINGS, CALIBRATION = "cells.jsonl", "settings.json", "calibration.json"
ERRORS = (0.2, 0.1, 0.05, 0.025)
#: by what share of a limit a policy is below it where a verdict is hoped for
ROOM = 0.2


@dataclass(frozen=True)
class KnownPolicy:
    """A policy of known truth: what a log said of its costs per episode, and what is so, (I,) each.

    kind: its class; what: "output" of the run, "clone" of the log, "bc-safe" or "other"
    """

    task: str
    what: str
    kind: str
    mean: F64
    deviation: F64
    truth: F64
    limits: F64


def judged(row: Mapping[str, Any]) -> list[KnownPolicy]:
    """Policies of a cell of `worlds` or `estimates`; none where the past matters or nothing was said."""
    from slater.deep.ope.posterior import deviations_at

    if not row.get("posterior") or row["posterior"]["past"]:
        return []
    found = []
    simulated = "limit_per_episode" in row
    task = row["cell"]["data"] if simulated else row["cell"]["world"]
    limits = np.array([row["limit_per_episode"]] if simulated else row["limits"], np.float64)

    def add(what: str, kind: str, mean: Any, deviation: Any, truth: Any) -> None:
        said, wide, true = (np.asarray(x, np.float64) for x in (mean, deviation, truth))
        found.append(KnownPolicy(task, what, kind, said, wide, true, limits))

    weights = []
    for member in row["members"]:
        if simulated:
            kind, said, true, wide = member[0], member[3:4], member[5:6], member[8:9]
            weights.append(row["weights"].get(kind, row["weights"].get(f"step {member[1]}", 0.0)))
        else:
            kind, weight, said, wide, true = member[0], member[1], member[2][1:], member[3][1:], member[4][1:]
            weights.append(weight)
        add("clone" if class_of(kind) == "clone" else "other", class_of(kind), said, wide, true)
    said = row["estimated"] if simulated else row["said"]
    true = row["measured"][:2] if simulated else row["true"]
    bound = np.array(list(row["posterior"]["at_most"].values()))
    deviation = (bound - said[1:]) / deviations_at(row["posterior"]["confidence"])
    lone = [k for k, weight in enumerate(weights) if weight > 1 - 1e-9]
    add("output", found[lone[0]].kind if lone else "mixture", said[1:], deviation, true[1:])
    if row.get("bc_safe_said"):
        mean, deviation = row["bc_safe_said"]
        add("bc-safe", "clone", mean[1:], deviation[1:], row["bc_safe"][1:])
    return found


def standard_errors(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, F64]]:
    """Returns and costs -> what a policy is -> (n,) of the truth less the mean, in standard deviations.

    Of simulated tasks, whose truth is rollouts, their standard error counts in.
    """
    found: dict[str, dict[str, list[float]]] = {"returns": {}, "costs": {}}
    for row in rows:
        if not row.get("posterior") or row["posterior"]["past"]:
            continue
        for member in row["members"]:
            played = class_of(member[0]) == "played"
            kind = "policies that were searched for" if played else "clones of the log"
            if "limit_per_episode" in row:
                said, true, wide = member[2:4], member[4:6], np.hypot(member[7:9], member[9:11])
            else:
                said, wide, true = member[2:5]
            z = (np.array(true) - said) / np.maximum(wide, 1e-12)
            for utility, values in (("returns", z[:1]), ("costs", z[1:])):
                found[utility].setdefault(kind, []).extend(values.tolist())
        for output in (p for p in judged(row) if p.what == "output"):
            z = (output.truth - output.mean) / floored(output.deviation, output.limits)
            found["costs"].setdefault("what was chosen", []).extend(z.tolist())
    return {utility: {kind: np.array(z) for kind, z in own.items()} for utility, own in found.items()}


def scores(policies: Sequence[KnownPolicy]) -> dict[str, list[float]]:
    """Of one task: class -> the worst score above, that below, and how many policies."""
    found = {}
    for kind in CLASSES:
        # what a run puts out is one policy, whatever it is made of
        output = kind == "mixture"
        own = [p for p in policies if (p.what == "output") == output and (output or p.kind == kind)]
        if own:
            each = [standardised(p.truth, p.mean, p.deviation, p.limits) for p in own]
            found[kind] = [max(above for above, _ in each), max(below for _, below in each), float(len(own))]
    return found


def run(
    out: Path, numbers: Sequence[int], seed: int = 0, tick: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Make the cells of these tasks that are not in `out` yet, and the calibration of all that are.

    Several processes may make cells of other tasks in one folder.
    """
    from slater.certify.estimates import made_with
    from slater.experiments.task_family import task_of
    from slater.experiments.worlds import measure

    settings = made_with()
    path = out / SETTINGS
    if path.exists() and json.loads(path.read_text()) != settings:
        raise InputError(f"the bank in {out} was begun with another default; choose another folder.")
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(settings, indent=1) + "\n").encode())
    for number in numbers:
        tick(f"task {number}")
        measure(f"task-{number}", task_of(number).episodes, seed, out)
    rows = read_json_lines(out / CELLS)
    if not rows:
        raise InputError(f"{out} holds no cell of a task; name tasks to make.")
    tasks = {row["cell"]["world"]: scores(own) for row in rows if (own := judged(row))}
    hidden = len(rows) - len(tasks)
    record = {
        "said": f"random small tasks; on {hidden} more the past matters, where nothing is decided",
        "settings": settings, "tasks": tasks,
    }  # fmt: skip
    write_atomic(out / CALIBRATION, (json.dumps(record, indent=1) + "\n").encode())
    return record


def read_calibration(record: Mapping[str, Any]) -> Calibration:
    """What `run` gave, whatever default it is of."""
    return Calibration.of_tasks(list(record["tasks"].values()), record["settings"], record["said"])


def table(record: Mapping[str, Any]) -> str:
    """The factors of a bank in Markdown, by class and error."""
    found = read_calibration(record)
    rows = [
        (CLASSES[kind], found.tasks(kind), found.together[kind], f"{error:.1%}",
         *(f"{factor:.2f}" for factor in found.factors(kind, error)))
        for kind in CLASSES for error in ERRORS
    ]  # fmt: skip
    return markdown_table(("policies", "tasks", "of a task", "error", "above", "below"), rows) + "\n"


def rates(
    rows: Iterable[Mapping[str, Any]], confidences: Sequence[float], calibration: Calibration | None = None
) -> list[dict[str, Any]]:
    """What verdicts on policies of known truth are worth: by what a policy is and confidence, how many pass,
    fail and are left open, how many are passed falsely, and, of those at least `ROOM` below every limit, how
    many pass. calibration: the package's unless given.
    """
    from slater.certify.estimates import made_with

    calibration = calibration or shipped_calibration(made_with())
    if calibration is None:
        raise InputError("the package's calibration is of another default; make a bank and name it.")
    policies = [policy for row in rows for policy in judged(row)]
    answer = []
    for confidence in confidences:
        for what in dict.fromkeys(policy.what for policy in policies):
            own, count = [p for p in policies if p.what == what], Counter[str]()
            for policy in own:
                word = _verdict(policy, *calibration.factors(policy.kind, 1.0 - confidence))
                over = bool(np.any(policy.truth > policy.limits))
                room = bool(np.all(policy.truth <= (1.0 - ROOM) * policy.limits))
                false = word != "abstain" and over == (word == "pass")
                passes = room and word == "pass"
                marks = {"over": over, f"false {word}": false, "room": room, "room passes": passes}
                count.update([word, *(name for name, so in marks.items() if so)])
            wrong = count["false pass"]
            interval = [share_lower(wrong, len(own), 0.025), share_upper(wrong, len(own), 0.025)]
            record = {"confidence": confidence, "what": what, "policies": len(own), "interval": interval}
            answer.append(record | {name: count[name] for name in COUNTED})
    return answer


#: what is counted of policies, besides how many there are
COUNTED = ("pass", "fail", "abstain", "over", "false pass", "false fail", "room", "room passes")


def _verdict(policy: KnownPolicy, up: float, down: float) -> str:
    """Of all limits together."""
    wide = floored(policy.deviation, policy.limits)
    if np.any(policy.mean - down * wide > policy.limits):
        return "fail"
    return "pass" if np.all(policy.mean + up * wide <= policy.limits) else "abstain"


def rates_table(found: Sequence[Mapping[str, Any]]) -> str:
    """`rates` in Markdown."""
    header = ("policies", "confidence", "judged", "pass", "fail", "abstain", "over a limit", "false passes",
              "false fails", f"{ROOM:.0%} below", "of those pass")  # fmt: skip
    rows = [
        (row["what"], f"{row['confidence']:.0%}", row["policies"], row["pass"], row["fail"], row["abstain"],
         row["over"], "{} ({:.1%} to {:.1%})".format(row["false pass"], *row["interval"]),
         row["false fail"], row["room"], row["room passes"])
        for row in found
    ]  # fmt: skip
    return markdown_table(header, rows) + "\n"
