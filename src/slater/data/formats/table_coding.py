"""How the columns of a table are read that are no numbers: encodings of observations, names of actions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from slater.data.formats.base import BLOCK_ROWS, listing
from slater.data.formats.table_layout import pyarrow
from slater.data.formats.table_values import Survey
from slater.data.metadata import Metadata
from slater.encoding import Encoding
from slater.errors import InputError


def is_list(kind: Any) -> bool:
    """Whether a column of this Arrow type holds a list per row."""
    types = pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


@dataclass(frozen=True)
class Coding:
    """How the columns of a table are read that are no numbers.

    encodings: of the columns of observations, in their order; none where the file says it by itself
    choices: the names of discrete actions, if they are text
    parsed: columns of numbers that are kept as text
    """

    encodings: tuple[Encoding, ...] = ()
    choices: tuple[str, ...] = ()
    parsed: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, source: Any, roles: dict[str, list[str]], *, encoded: bool, amounts: bool, like: Metadata | None
    ) -> Coding:
        """Decided from all values of a column, or as it was `like` (`slater.data.ReadOptions`).

        encoded: whether observations are; amounts: whether actions are numbers in any case.
        """
        arrow, schema = pyarrow(), source.schema
        types, seen, after = arrow.types, roles.get("observations", []), roles.get("next_observations", [])
        if any(is_list(schema.field(name).type) for name in seen):
            return cls()
        actions = roles.get("actions", []) if not amounts else []
        told = _told(seen, like) if encoded else {}
        surveys: dict[str, Survey] = {}
        for name in [*(seen if encoded else ()), *(actions if len(actions) == 1 else ())]:
            fields = [part.field(name).type for _, part in source.schemas]
            known = name in told and told[name].kind != "number"
            if known or not all(types.is_boolean(f) or Survey.needed(types, f) for f in fields):
                continue  # numbers, or a mixture of kinds, which the reader speaks about
            if any(Survey.needed(types, f) for f in fields):
                surveys[name] = Survey(source.name, name, "actions" if name in actions else "observations")
        pairs = dict(zip(seen, after, strict=False)) if len(after) == len(seen) else {}
        wanted = {name: [name, *([pairs[name]] if name in pairs else [])] for name in surveys}
        columns = [column for names in wanted.values() for column in names]
        text = {n: arrow.string() for n in columns if not types.is_temporal(schema.field(n).type)}
        for batch in source.batches(BLOCK_ROWS, columns, text) if columns else ():
            for name, names in wanted.items():
                for column in names:
                    surveys[name].update(batch.column(column))
        encodings = []
        for name in seen if encoded else ():
            flag = Encoding(name, "flag" if types.is_boolean(schema.field(name).type) else "number")
            found = surveys[name].encoding() if name in surveys else flag
            before = told.get(name, found)
            if before.kind == "number" != found.kind:
                raise InputError(
                    f"the column {name!r} was numbers in the data of the policy, and here it is {found}; map "
                    f"the column that holds them, observations={','.join(n for n in told)}."
                )
            encodings.append(before)
        choices = surveys[actions[0]].choices() if len(actions) == 1 and actions[0] in surveys else ()
        if choices and like is not None and like.num_actions and like.action_names:
            if unknown := [choice for choice in choices if choice not in like.action_names]:
                raise InputError(
                    f"the column {actions[0]!r} (actions) has {listing(unknown)}, and the policy chooses "
                    f"among {listing(like.action_names)}; map the column of actions, or rename what it holds."
                )
            choices = like.action_names
        parsed = frozenset(name for name in seen if encoded and name in surveys and surveys[name].numbers)
        return cls(tuple(encodings), choices, parsed)


def in_order(names: list[str], like: Metadata | None) -> list[str]:
    """The columns of observations in the order that a policy takes them, where they have its names."""
    known = [] if like is None or like.columns is None else [encoding.name for encoding in like.columns]
    return known if set(known) == set(names) else names


def _told(names: list[str], like: Metadata | None) -> dict[str, Encoding]:
    """What each column became before, by its place."""
    known = () if like is None or like.columns is None else like.columns
    if known and len(known) != len(names):
        raise InputError(
            f"the policy observes {listing(e.name for e in known)}, and the map names {listing(names)}; map "
            "as many columns, in that order: observations=...,..."
        )
    return {name: replace(encoding, name=name) for name, encoding in zip(names, known, strict=False)}
