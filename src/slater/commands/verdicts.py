"""The lines with which training ends where episodes were held out: one verdict per run and limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slater.errors import InputError
from slater.runs.held_out import read_held_out

__all__ = ["print_verdicts"]


def print_verdicts(folders: Sequence[Path], whole: Any, *, fit: bool) -> None:
    """What the held-out episodes of `whole` say of finished runs, which all kept the same.

    fit: whether to fit estimators to them where those could decide something; if not, the lines say at once
    what keeps them from a verdict.
    """
    from slater.certify.judge import certify
    from slater.certify.opinions import NOT_FITTED

    if not folders:
        return
    kept = read_held_out(folders[0])
    count = len(kept.episodes) if kept else 0
    several = len(folders) > 1
    shared = f"verdicts on {count} held-out episodes, the same for every run, which share the error:"
    print(shared if several else f"verdict on {count} held-out episodes:")
    for folder in folders:
        name = f"{folder.name}: " if several else ""
        try:
            found = certify(folder, whole, candidates=len(folders), fit=False)
            # estimators take half a minute, which is spent only where they could decide something
            if fit and any(gate.name == NOT_FITTED for limit in found.limits for gate in limit.gates):
                found = certify(folder, whole, candidates=len(folders))
            lines = [str(limit) for limit in found.limits]
        except InputError as error:  # a policy that the log alone cannot judge, as one with memory
            lines = [f"ABSTAIN  {error}"]
        for line in lines:
            print(f"  {name}{line}")
    print(f"for estimates and pictures: slater certify {folders[0]}")
