"""What a run that is resumed may be told anew, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from slater.commands.reading import Reading
from slater.commands.train_options import Options
from slater.errors import InputError
from slater.limits import resolve_limits
from slater.pairs import parse_pairs
from slater.runs import Record

#: options that say how the data are read
_READING = frozenset(option.name for option in fields(Reading))
#: options that a resumed run may be given anew: they do not change what it computes, but for `steps`
_FREE = {"resume", "data", "steps", "tensorboard", "wandb", "trackio", "all_threads", "require_limits"}


def refuse_changes(options: Options, given: frozenset[str], record: Record) -> None:
    """Refuse, by name, what a resumed run cannot change; the same value again is no change."""
    run = record.run
    for name in sorted(given - _FREE):
        word = f"--{name.replace('_', '-')}"
        if name in ("out", "seeds", "sweep", "engine", "processes", "settings", "hold_out"):
            raise InputError(f"{word} is for new runs; a run that is resumed stays in {options.resume}.")
        before: Any
        now: Any
        if name == "limit":
            costs = [limit.cost or "" for limit in run.limits]
            before, now = " ".join(run.limit_texts), " ".join(map(str, resolve_limits(options.limit, costs)))
        elif name == "set":
            for setting, value in parse_pairs(options.set).items():
                _refuse_setting(record, setting, value)
            continue
        elif name == "no_estimate":
            before, now = not run.estimate, options.no_estimate
        elif name in _READING:
            before, now = _words(run.reading), _words(options.reading.record())
        else:
            before, now = getattr(run, name), getattr(options, name)
        if now != before:
            raise InputError(
                f"{word if name != 'algorithm' else 'the algorithm'} cannot change in a run that is "
                f"resumed: it has {before}, not {now}; train anew."
            )


def _refuse_setting(record: Record, name: str, text: str) -> None:
    from slater.deep.algorithms.registry import find, make_config

    if name == "steps":
        raise InputError(f"--set steps={text} is for new runs; --steps {text} extends one that is resumed.")
    kind = find(record.run.algorithm, record.run.preset)
    now, before = (getattr(make_config(kind, {name: x}), name) for x in (text, record.config.get(name)))
    if now != before:
        old = "x".join(map(str, before)) if isinstance(before, tuple) else before
        raise InputError(
            f"--set {name}={text} cannot change a run that is resumed, which has {old}; train anew."
        )


def _words(reading: Mapping[str, Any]) -> str:
    """How the data are read, as one would write it."""
    columns = [f"{role}={','.join(names)}" for role, names in reading.get("columns", {}).items()]
    others = [f"{name}={value}" for name, value in reading.items() if name != "columns"]
    return " ".join([*columns, *others]) or "nothing of the kind"
