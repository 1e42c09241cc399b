"""A ledger beside a log: which policies were judged by it, so that its certificates share one error.

Whoever certifies policy after policy on one hold-out until one passes gives luck as many chances. The
number of certificates on a log is not known in advance, so the k-th gets 6 / (pi^2 k^2) of the error: all of
them together, however many, have no more than the whole. Candidates that are judged together, or that are
said to belong together by their number, are one entry; a policy that is judged again is where it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slater.disk import locked, read_json, write_json
from slater.errors import InputError

FORMAT = "slater-ledger-1"


class Entry(NamedTuple):
    """Where a certificate stands in the ledger of its log: number, from 1, and a sentence on it."""

    number: int
    said: str

    @property
    def share(self) -> float:
        """Of the error."""
        return 6.0 / (math.pi * self.number) ** 2


def ledger_path(data: str | Path) -> Path:
    """The ledger of a log."""
    place = Path(data).resolve()  # one log has one ledger, by whatever link and path it is named
    return place.with_name(f"{place.name}.certificates.json")


def enter(data: str | Path, fingerprint: str, policies: Sequence[str], candidates: int) -> Entry:
    """Enter policies, by what they are, as one certificate on the log, and say where they stand.

    fingerprint: of the log as it is now. candidates: how many are judged to choose one, in all.
    """
    path = ledger_path(data)
    if not os.access(path.parent, os.W_OK):
        said = f"it is taken that no other policy was judged by this log: {path} cannot be written."
        return Entry(1, said)
    with locked(path, beside=True, wait=60.0):
        return _entered(path, fingerprint, policies, candidates)


def _sound(logs: Any) -> bool:
    try:
        entries = [one for each in logs.values() for one in each]
        return all(isinstance(one["policies"], list) and one["candidates"] >= 1 for one in entries)
    except (TypeError, KeyError, AttributeError):
        return False


def _entered(path: Path, fingerprint: str, policies: Sequence[str], candidates: int) -> Entry:
    logs: dict[str, list[dict[str, Any]]] = {}
    if path.exists():
        record = read_json(path, "a ledger of certificates")
        if record.get("format") != FORMAT or not _sound(record.get("logs")):
            raise InputError(f"{path} is not readable as a ledger of certificates; move it away.")
        logs = record["logs"]
    entries = logs.setdefault(fingerprint, [])
    known = [k for k, entry in enumerate(entries) if set(policies) <= set(entry["policies"])]
    if known and entries[known[0]]["candidates"] >= candidates:
        number = known[0]
    else:
        alike = [k for k, entry in enumerate(entries) if entry["candidates"] == candidates]
        room = (k for k in alike if len({*entries[k]["policies"], *policies}) <= candidates)
        number = next(room, len(entries))
        if number == len(entries):
            entries.append({"candidates": candidates, "policies": []})
        entries[number]["policies"] = sorted(set(entries[number]["policies"]) | set(policies))
        write_json(path, {"format": FORMAT, "logs": logs})
    share = Entry(number + 1, "").share
    said = f"certificate {number + 1} on this log, which gets {share:.0%} of the error ({path.name})."
    return Entry(number + 1, said)
