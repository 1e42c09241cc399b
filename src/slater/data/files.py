"""Open, load, check, convert and save: the verbs, for every format."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slater.data.assemble import Block, Layout, RawBlock, layout_of, stream_rows
from slater.data.checks import Inspector
from slater.data.dataset import Dataset
from slater.data.episodes import EpisodeCounter, Episodes
from slater.data.findings import Findings, Report
from slater.data.fingerprint import OPTIONAL_FIELDS, Fingerprint
from slater.data.formats.base import BLOCK_ROWS, Notes, Reader, ReadOptions, read_options
from slater.data.formats.known import open_reader, writer_for
from slater.data.formats.store import is_store, settle
from slater.data.metadata import Metadata
from slater.data.missing import Missing, MissingValues
from slater.data.order import watch_time
from slater.data.past import LOOKED_AT, remedy, with_history
from slater.data.store import StoredDataset
from slater.encoding import Encoding
from slater.errors import InputError, InputWarning


@dataclass(frozen=True)
class Opened:
    """A reader with its layout decided; `layout` is None if its columns cannot form rows."""

    reader: Reader
    layout: Layout | None
    metadata: Metadata
    findings: Findings
    missing: Missing = "refuse"
    #: nobody said whether actions are indices or amounts: it was told by their type
    assumed: bool = False

    @property
    def report(self) -> Report:
        """The problems found so far."""
        return Report(self.reader.name, tuple(self.findings.problems), self.reader.recognised)

    def require_layout(self) -> Layout:
        """The layout, or the structural errors as an `InputError`."""
        self.report.raise_errors()
        if self.layout is None:
            raise AssertionError("a layout is missing only where an error was noted")
        return self.layout

    def rows(self, block_rows: int | None = None) -> Iterator[Block]:
        """All rows in blocks, checked as they pass; the problems are whole after the last block."""
        layout = self.layout
        if layout is None:
            return
        holes = MissingValues(self.missing, self.findings)
        findings, derived = (
            self.findings.renumbered(holes.in_the_file),
            "next_observations" not in layout.present,
        )
        inspector = Inspector(
            layout.cost_names,
            self.metadata,
            findings,
            derived=derived,
            assumed=self.assumed,
            labels=self.reader.labels,
        )
        content = Fingerprint(layout.cost_names)
        stated = self.reader.fingerprint
        blocks: Iterator[RawBlock] = self.reader.blocks(block_rows or self.reader.block_rows())
        if "time" in self.reader.columns:
            blocks = watch_time(blocks, self.findings)
        if self.missing == "refuse":
            stream = stream_rows(blocks, layout, self.findings)
        else:
            stream = holes.rows(stream_rows(holes.raw(blocks), layout, self.findings), derived=derived)
            stated = None  # the rows are no longer those that were written
        for rows, after in stream:
            inspector.update(rows, after)
            if stated is not None:
                content.update(rows)
            yield rows
        inspector.finish()
        if stated is not None and layout.clip is None and content.hexdigest() != stated:
            message = "are not those that were written (the fingerprint differs): damaged or edited"
            if self.reader.format == "csv":
                message += f"; if you edited it, remove {self.reader.name}.json"
            self.findings.add("error", "rows", message)


def open_file(path: Any, options: ReadOptions | None = None) -> Opened:
    """Open a file and decide its layout; close `reader` when done."""
    options = options or ReadOptions()
    reader = open_reader(path, options)
    findings = Findings()
    reader.note(findings)
    actions = reader.columns.get("actions")
    action_dim = None if actions is None else (actions.tail[0] if actions.tail else 1)
    metadata = _with_names(options.override(reader.metadata, action_dim), reader, options)
    discrete = options.discrete if options.discrete is not None else reader.discrete
    layout = layout_of(
        {role: column for role, column in reader.columns.items() if role != "time"},
        cost_names=options.cost_names or reader.cost_names or _mapped_cost_name(reader, options),
        metadata=metadata,
        findings=findings,
        discrete=discrete,
    )
    assumed = discrete is None and metadata.num_actions is None
    if layout is not None:
        layout = replace(layout, whole_episodes=reader.whole_episodes)
    if layout is not None and not layout.discrete and (options.clip_actions or reader.clips_actions):
        if metadata.action_low is None or metadata.action_high is None:
            raise InputError("To clip actions, give their bounds, action_low and action_high.")
        bounds = (np.asarray(metadata.action_low, np.float32), np.asarray(metadata.action_high, np.float32))
        layout = replace(layout, clip=bounds)
    return Opened(reader, layout, metadata, findings, options.missing, assumed)


def _with_names(metadata: Metadata, reader: Reader, options: ReadOptions) -> Metadata:
    """Columns that a map names, one entry each, keep their names, whatever the format."""
    for role, field in (("observations", "columns"), ("actions", "action_names")):
        names, column = options.columns.get(role, ()), reader.columns.get(role)
        width = None if column is None else math.prod(column.tail)
        plain = width == len(names) and not any(name.endswith("*") for name in names)
        if plain and getattr(metadata, field) is None:
            told = tuple(map(Encoding, names)) if field == "columns" else tuple(names)
            metadata = replace(metadata, **{field: told})  # type: ignore[arg-type]
    return metadata


def _mapped_cost_name(reader: Reader, options: ReadOptions) -> tuple[str, ...] | None:
    """A single cost that the column map names keeps that name."""
    mapped, costs = options.columns.get("costs", ()), reader.columns.get("costs")
    if len(mapped) != 1 or mapped[0].endswith("*") or costs is None or costs.tail not in ((), (1,)):
        return None
    return (mapped[0].rpartition("/")[2],)


def load(path: Any, options: ReadOptions | None = None, **told: Any) -> Dataset:
    """Read a file of any known format, or a pandas, Polars or Arrow table; any error of the checks is raised.

    What a person should know besides (rows left out, a cost below 0) is a `slater.errors.InputWarning` each.
    What the file does not say can be told, as options or by their names:
    `load("log.csv", columns={"observations": ["x", "v"], "costs": "wear", ...}, missing="drop")`; see
    `ReadOptions`. Columns may also be texts, as on the command line: ["observations=x,v", "costs=wear"].
    """
    if told:
        if options is not None:
            raise InputError("Give either options or their names, not both.")
        options = read_options(**told)
    opened = open_file(path, options)
    with opened.reader:
        try:
            parts = list(opened.rows())
            dataset = _joined(parts, opened.require_layout(), opened.metadata)
        except MemoryError:
            raise InputError(_too_large(opened.reader.name)) from None
    for text in told_warnings(opened.reader.name, opened.report):
        warnings.warn(text, InputWarning, stacklevel=2)
    return with_history(dataset) if options is not None and options.history else dataset


def _joined(parts: list[Block], layout: Layout, metadata: Metadata) -> Dataset:
    """Blocks of rows as a dataset; they are taken from the list one column at a time."""
    names = EpisodeCounter(len(layout.cost_names))
    for rows in parts:
        if "source" in rows:
            names.update(rows)
            del rows["source"]
    joined: Any = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    source = names.finish().source
    return Dataset(**joined, cost_names=layout.cost_names, metadata=metadata, source=source)


def told_warnings(path: str | Path, report: Report) -> list[str]:
    """The warnings of a report as sentences that stand alone."""
    return [f"{path}: {found}{', numbered from 0' if found.rows else ''}" for found in report.warnings]


def _too_large(path: str | Path, needed: float | None = None, advice: str = "") -> str:
    size = "more memory than there is" if needed is None else f"{needed / 2**30:.1f} GiB of memory"
    store = Path(str(path).removeprefix("minari:")).with_suffix(".store").name
    return (
        f"{path} needs {size}; run `slater data convert {path} {store}` and use that: it is read in "
        f"batches{advice}."
    )


def open_dataset(
    path: str | Path, options: ReadOptions | None = None, *, max_bytes: float = math.inf, advice: str = ""
) -> Dataset | StoredDataset:
    """A store as a `StoredDataset`, anything else loaded; over `max_bytes` the way to a store is said.

    advice: how to allow more, added to that sentence.
    """
    settle(Path(path))
    if is_store(Path(path)):
        if options not in (None, ReadOptions()):
            raise InputError(f"{path} is a store; give options when converting to it, not when opening it.")
        return StoredDataset(path)
    if max_bytes < math.inf:
        with open_reader(path, options) as reader:
            needed = sum((c.rows or 0) * 4 * max(1, math.prod(c.tail)) for c in reader.columns.values())
        if needed > max_bytes:
            raise InputError(_too_large(path, needed, advice))
    return load(path, options)


def inspect(path: str | Path, options: ReadOptions | None = None) -> Report:
    """Every problem of a file, found while streaming through it; a file that cannot be opened is one.

    Whether observations hide something is asked of the first rows, as many as `past_matters` looks at.
    """
    findings, recognised = Findings(), ""
    try:
        opened = open_file(path, options)
        findings, recognised = opened.findings, opened.reader.recognised
        first, size = list[Block](), 0
        with opened.reader:
            for rows in opened.rows():
                first += [rows] if size < LOOKED_AT else []
                size += len(rows["rewards"])
        usable = opened.layout is not None and not opened.report.errors
        if usable and (found := remedy(_joined(first, opened.require_layout(), opened.metadata).hidden)):
            findings.add("warning", "observations", found.rstrip("."))
    except InputError as error:
        findings.add("error", "file", str(error).rstrip("."))
    return Report(str(path), tuple(findings.problems), recognised)


def _refuse_existing(target: str | Path, overwrite: bool) -> None:
    """Asked before a writer is made, and after: a store's is locked then, and another may have finished."""
    if not overwrite and not str(target).startswith("minari:") and Path(target).exists():
        raise InputError(f"{target} is already there; remove it, or say that it may be overwritten.")


def convert(
    source: str | Path,
    target: str | Path,
    options: ReadOptions | None = None,
    *,
    overwrite: bool = False,
    bare: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> tuple[Report, Episodes]:
    """Stream one file into another format; an error that the checks find leaves no target behind.

    bare: leave out `OPTIONAL_FIELDS`, what a log remembers of the policies that made it.
    progress: called with rows done and rows in all (None if not known beforehand).
    """
    settle(Path(target))
    _refuse_existing(target, overwrite)
    if not str(target).startswith("minari:") and Path(target).exists():
        if not str(source).startswith("minari:") and Path(target).resolve() == Path(source).resolve():
            raise InputError(f"{source} cannot be converted onto itself; give another name.")
        if Path(target).is_dir() and not is_store(Path(target)):
            raise InputError(f"{target} is a folder that is no store; remove it yourself.")
    opened = open_file(source, options)
    with opened.reader:
        layout = opened.require_layout()
        total = next((c.rows for c in opened.reader.columns.values() if c.rows is not None), None)
        notes = Notes(opened.metadata, layout.cost_names, layout.discrete)
        content = Fingerprint(layout.cost_names)
        counter = EpisodeCounter(len(layout.cost_names), opened.metadata.horizon)
        done = 0
        with writer_for(target, notes) as writer:
            _refuse_existing(target, overwrite)
            for rows in opened.rows():
                if bare:
                    rows = {name: array for name, array in rows.items() if name not in OPTIONAL_FIELDS}
                writer.write(rows)
                content.update(rows)
                counter.update(rows)
                done += len(rows["rewards"])
                if progress is not None:
                    progress(done, total)
            opened.report.raise_errors()
            writer.finish(content.hexdigest())
    return opened.report, counter.finish()


def save(dataset: Dataset, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a dataset in the format that the name of `path` says."""
    settle(Path(path))
    _refuse_existing(path, overwrite)
    with writer_for(path, Notes(dataset.metadata, dataset.cost_names, dataset.discrete)) as writer:
        _refuse_existing(path, overwrite)
        for start in range(0, dataset.size, BLOCK_ROWS):
            writer.write(dataset.rows(start, start + BLOCK_ROWS))
        writer.finish(dataset.fingerprint)
