"""The lines with which training ends where episodes were held out: one verdict per run and limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slater.errors import InputError
from slater.runs.held_out import read_held_out


def print_verdicts(folders: Sequence[Path], whole: Any, *, fit: bool) -> None:
    """What a log says of finished runs, which all kept the same episodes of it from training.

    fit: whether to fit the log where that could decide something; if not, the lines say at once what keeps it
    from a verdict.
    """
    from slater.certify.estimates import NOT_FITTED
    from slater.certify.judge import certify
    from slater.certify.subjects import find_policy

    if not folders:
        return
    kept = read_held_out(folders[0])
    count = len(kept.episodes) if kept else 0
    several = len(folders) > 1
    print(f"verdict{'s, which share the error' * several} ({count} episodes were held out):")
    for folder in folders:
        name = f"{folder.name}: " if several else ""
        try:
            subject = find_policy(folder)
            found = certify(subject, whole, candidates=len(folders), fit=False)
            # a fit takes half a minute, which is spent only where it could decide something
            if fit and any(gate.name == NOT_FITTED for limit in found.limits for gate in limit.gates):
                found = certify(subject, whole, candidates=len(folders))
            lines = [str(limit) for limit in found.limits]
        except InputError as error:  # a policy that the log alone cannot judge, as one with memory
            lines = [f"ABSTAIN  {error}"]
        for line in lines:
            print(f"  {name}{line}")
    print(f"for estimates and pictures: slater certify {folders[0]}")
