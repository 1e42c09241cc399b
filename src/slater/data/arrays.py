"""A dataset from arrays in memory, and from frames whose columns have names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.data.assemble import Column, layout_of, stream_rows
from slater.data.checks import Inspector
from slater.data.dataset import Dataset
from slater.data.episodes import EpisodeCounter
from slater.data.findings import Findings, Report
from slater.data.metadata import Metadata
from slater.data.names import as_names
from slater.encoding import Encoding, is_table, table_columns
from slater.errors import InputError


def assemble(
    raw: Mapping[str, ArrayLike | Mapping[str, ArrayLike] | None],
    *,
    cost_names: Sequence[str] | None,
    metadata: Metadata,
    name: str = "The dataset",
) -> Dataset:
    """A checked dataset from arrays in memory; one `InputError` if any check finds an error."""
    given = {key: value for key, value in raw.items() if value is not None}
    given, metadata = _named(given, metadata)
    costs = given.get("costs")
    if isinstance(costs, Mapping):
        if cost_names is not None and tuple(cost_names) != tuple(costs):
            raise InputError("The costs are a mapping with its own names; leave cost_names out.")
        if not costs:
            raise InputError("The mapping of costs is empty; at least one cost is needed.")
        cost_names = tuple(str(key) for key in costs)
        each = [np.asarray(column) for column in costs.values()]
        if any(column.shape != each[0].shape or column.ndim != 1 for column in each):
            raise InputError("Each cost of the mapping must have shape (N,), the same for all.")
        given["costs"] = np.stack(each, axis=1)
    arrays = {key: _array(key, value) for key, value in given.items()}
    per_episode = None
    if "source" in arrays and len(arrays["source"]) != len(arrays["observations"]):
        per_episode = as_names(arrays.pop("source"))
    findings = Findings()
    columns = {key: Column(len(array), array.shape[1:], array.dtype) for key, array in arrays.items()}
    layout = layout_of(columns, cost_names=cost_names, metadata=metadata, findings=findings)
    if layout is None:
        Report(name, tuple(findings.problems)).raise_errors()
        raise AssertionError("a layout is missing only where an error was noted")
    derived = "next_observations" not in layout.present
    inspector = Inspector(layout.cost_names, metadata, findings, derived=derived)
    ((rows, _),) = stream_rows([arrays], layout, findings)
    inspector.update(rows, None)
    inspector.finish()
    Report(name, tuple(findings.problems)).raise_errors()
    if "source" in rows:
        counter = EpisodeCounter(len(layout.cost_names))
        counter.update(rows)
        per_episode = counter.finish().source
        del rows["source"]
    return Dataset(**rows, cost_names=layout.cost_names, metadata=metadata, source=per_episode)


def _named(given: dict[str, Any], metadata: Metadata) -> tuple[dict[str, Any], Metadata]:
    """Frames among the arrays as arrays; names of columns go into the metadata, costs stay by name."""
    for key in ("observations", "next_observations", "actions", "costs"):
        frame: Any = given.get(key)
        if isinstance(frame, Mapping) or not is_table(frame):
            continue
        names = [str(name) for name in getattr(frame, "column_names", None) or frame.columns]
        columns = {name: Encoding(name).encode(array) for name, array in table_columns(frame, names).items()}
        given[key] = np.concatenate(list(columns.values()), axis=1)
        if key == "costs":
            given[key] = {name: column[:, 0] for name, column in columns.items()}
        elif key == "observations":
            metadata = replace(metadata, columns=metadata.columns or tuple(map(Encoding, names)))
        elif key == "actions":
            metadata = replace(metadata, action_names=metadata.action_names or tuple(names))
    return given, metadata


def _array(key: str, value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"The {key} do not form an array: {error}.") from None
    if array.ndim == 0:
        raise InputError(f"The {key} must have one entry per row, not be the single value {value!r}.")
    return array
