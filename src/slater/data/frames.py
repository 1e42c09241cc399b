"""A dataset as people look at it: columns by name, a pandas frame, a line, a small table in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slater.data.fingerprint import OPTIONAL_FIELDS
from slater.errors import InputError

if TYPE_CHECKING:
    from slater.data.dataset import Dataset


def to_pandas(data: Dataset) -> Any:
    """A pandas frame with a row per step and columns by name, as `columns_of` has them; needs pandas."""
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("to_pandas needs pandas: pip install pandas.") from None
    return pandas.DataFrame(columns_of(data))


def columns_of(data: Dataset) -> dict[str, NDArray[Any]]:
    """The rows as columns by name, each (N,): episode, observations, actions, reward, costs, ends.

    What has no name of its own is obs_0, action_0 and so on; discrete actions go by their names.
    `slater.load` reads it back, with a column map where names are the data's own.
    """
    episodes, meta = data.episodes, data.metadata
    columns: dict[str, NDArray[Any]] = {"episode": np.repeat(np.arange(len(episodes)), episodes.lengths)}
    names = meta.entry_names(data.observation_dim) or [f"obs_{k}" for k in range(data.observation_dim)]
    columns |= {name: data.observations[:, k] for k, name in enumerate(names)}
    named = meta.action_names or ()
    if data.discrete:
        fits = len(named) == data.num_actions > 1
        columns["action"] = np.array(named, dtype=object)[data.actions] if fits else data.actions
    else:
        fits = len(named) == data.action_dim
        names = list(named) if fits else [f"action_{k}" for k in range(data.action_dim)]
        columns |= {name: data.actions[:, k] for k, name in enumerate(names)}
    columns["reward"] = data.rewards
    prefix = "" if data.cost_names == ("cost",) else "cost_"
    columns |= {prefix + name: data.costs[:, k] for k, name in enumerate(data.cost_names)}
    columns |= {"terminal": data.terminals, "timeout": data.timeouts}
    return columns | {name: values for name, values in data.rows().items() if name in OPTIONAL_FIELDS}


def sentence(data: Dataset) -> str:
    """Sizes, and what an episode brings and costs on average, in a line."""
    many = f"{data.num_actions} actions" if data.discrete else f"actions of {data.action_dim}"
    means = zip(data.cost_names, data.episodes.costs.mean(axis=0), strict=True)
    costs = ", ".join(f"{name} {mean:.4g}" for name, mean in means)
    return (
        f"Dataset of {data.size:,} steps in {len(data.episodes):,} episodes of up to {data.horizon}, "
        f"observations of {data.observation_dim}, {many}; an episode: reward "
        f"{data.episodes.returns.mean():.4g}, {costs}"
    )


def html(data: Dataset, rows: int = 5) -> str:
    """The line, and the first rows below it."""
    columns = columns_of(data)
    names = list(columns) if len(columns) <= 16 else [*list(columns)[:8], *list(columns)[-8:]]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = ""
    for row in range(min(rows, data.size)):
        cells = [columns[name][row] for name in names]
        shown = [f"{cell:.4g}" if isinstance(cell, np.floating) else escape(str(cell)) for cell in cells]
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in shown) + "</tr>"
    more = f"<p>and {data.size - rows:,} rows more</p>" if data.size > rows else ""
    return f"<p>{escape(sentence(data))}</p><table><tr>{head}</tr>{body}</table>{more}"
