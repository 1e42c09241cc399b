"""Open, load, check, convert and save: the verbs, for every format."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import Block, Layout, layout_of, stream_rows
from slater.data.checks import Inspector
from slater.data.dataset import OPTIONAL_FIELDS, Dataset, Fingerprint, Metadata
from slater.data.episodes import EpisodeCounter, Episodes
from slater.data.findings import Findings, Report
from slater.data.formats.base import BLOCK_ROWS, Notes, Reader, ReadOptions, Writer, read_options
from slater.data.formats.dsrl import DsrlReader, DsrlWriter
from slater.data.formats.minari import MinariReader, MinariWriter, is_minari
from slater.data.formats.npz import NpzReader, NpzWriter
from slater.data.formats.store import StoreReader, StoreWriter, is_store, settle
from slater.data.formats.table_layout import parquet_files
from slater.data.formats.table_writing import TableWriter
from slater.data.formats.tables import TableReader
from slater.data.missing import Missing, MissingValues
from slater.data.order import watch_time
from slater.data.store import StoredDataset
from slater.errors import InputError, InputWarning

__all__ = [
    "SUFFIXES",
    "Opened",
    "convert",
    "inspect",
    "load",
    "open_dataset",
    "open_file",
    "open_reader",
    "save",
]

#: suffix -> format
SUFFIXES = {
    ".hdf5": "dsrl",
    ".h5": "dsrl",
    ".npz": "npz",
    ".parquet": "table",
    ".pq": "table",
    ".csv": "table",
    ".tsv": "table",
    ".store": "store",
}
_READERS: dict[str, Callable[[Path, ReadOptions], Reader]] = {
    "dsrl": DsrlReader,
    "npz": NpzReader,
    "table": TableReader,
    "store": StoreReader,
}
_WRITERS: dict[str, Callable[[Path, Notes], Writer]] = {
    "dsrl": DsrlWriter,
    "npz": NpzWriter,
    "table": TableWriter,
    "store": StoreWriter,
}
#: first bytes -> format, for files whose name says nothing
_MAGIC = {b"\x89HDF\r\n\x1a\n": "dsrl", b"PK\x03\x04": "npz", b"PAR1": "table"}


def open_reader(path: str | Path, options: ReadOptions | None = None) -> Reader:
    """Open a file of any known format, found by its name or its first bytes."""
    options = options or ReadOptions()
    text = str(path)
    if text.startswith("minari:"):
        return MinariReader(text, options)
    file = Path(path)
    settle(file)
    if not file.exists():
        raise InputError(f"There is no file {path}.")
    if is_store(file):
        return StoreReader(file, options)
    if is_minari(file):
        return MinariReader(text, options)
    if file.is_dir():
        if not parquet_files(file):
            raise InputError(
                f"{path} is a folder, but neither a store nor a Minari dataset, and holds no Parquet files."
            )
        return TableReader(file, options)
    if not file.is_file():
        raise InputError(f"{path} is no ordinary file.")
    return _READERS[_format_of(file)](file, options)


def _format_of(file: Path) -> str:
    try:
        with open(file, "rb") as handle:
            first = handle.read(8)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
    if not first:
        raise InputError(f"{file} is empty.")
    for magic, kind in _MAGIC.items():
        if first.startswith(magic):
            return kind
    kind = SUFFIXES.get(file.suffix.lower(), "")
    if not kind or kind == "store":
        raise InputError(f"{file} is of no known format; known are {', '.join(SUFFIXES)} and minari:ID.")
    return kind


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
        return Report(self.reader.name, tuple(self.findings.problems))

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
        inspector = Inspector(
            layout.cost_names,
            self.metadata,
            self.findings.renumbered(holes.in_the_file),
            derived="next_observations" not in layout.present,
            assumed=self.assumed,
            labels=self.reader.labels,
        )
        content = Fingerprint(layout.cost_names)
        stated = self.reader.fingerprint
        blocks: Iterator[Mapping[str, NDArray[Any]]] = self.reader.blocks(
            block_rows or self.reader.block_rows()
        )
        if "time" in self.reader.columns:
            blocks = watch_time(blocks, self.findings)
        if self.missing == "refuse":
            stream = stream_rows(blocks, layout, self.findings)
        else:
            derived = "next_observations" not in layout.present
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


def open_file(path: str | Path, options: ReadOptions | None = None) -> Opened:
    """Open a file and decide its layout; close `reader` when done."""
    options = options or ReadOptions()
    reader = open_reader(path, options)
    findings = Findings()
    reader.note(findings)
    actions = reader.columns.get("actions")
    action_dim = None if actions is None else (actions.tail[0] if actions.tail else 1)
    metadata = options.override(reader.metadata, action_dim)
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


def _mapped_cost_name(reader: Reader, options: ReadOptions) -> tuple[str, ...] | None:
    """A single cost that the column map names keeps that name."""
    mapped, costs = options.columns.get("costs", ()), reader.columns.get("costs")
    if len(mapped) != 1 or mapped[0].endswith("*") or costs is None or costs.tail not in ((), (1,)):
        return None
    return (mapped[0].rpartition("/")[2],)


def load(path: str | Path, options: ReadOptions | None = None, **told: Any) -> Dataset:
    """Read a file of any known format into memory; any error that the checks find is raised.

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
            parts, names = [], EpisodeCounter(0 if opened.layout is None else len(opened.layout.cost_names))
            for rows in opened.rows():
                if "source" in rows:
                    names.update(rows)
                    del rows["source"]
                parts.append(rows)
            layout = opened.require_layout()
            joined: dict[str, Any] = {
                name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])
            }
        except MemoryError:
            raise InputError(_too_large(path)) from None
    for text in told_warnings(path, opened.report):
        warnings.warn(text, InputWarning, stacklevel=2)
    source = names.finish().source
    return Dataset(**joined, cost_names=layout.cost_names, metadata=opened.metadata, source=source)


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
            needed = sum(
                (column.rows or 0) * 4 * max(1, math.prod(column.tail)) for column in reader.columns.values()
            )
        if needed > max_bytes:
            raise InputError(_too_large(path, needed, advice))
    return load(path, options)


def inspect(path: str | Path, options: ReadOptions | None = None) -> Report:
    """Every problem of a file, found while streaming through it; a file that cannot be opened is one."""
    findings = Findings()
    try:
        opened = open_file(path, options)
        findings = opened.findings
        with opened.reader:
            for _ in opened.rows():
                pass
    except InputError as error:
        findings.add("error", "file", str(error).rstrip("."))
    return Report(str(path), tuple(findings.problems))


def writer_for(path: str | Path, notes: Notes) -> Writer:
    """A writer for the format that the name of `path` says."""
    if str(path).startswith("minari:"):
        return MinariWriter(str(path), notes)
    target = Path(path)
    kind = SUFFIXES.get(target.suffix.lower())
    if kind is None:
        raise InputError(f"The name {path} says no known format; end it in one of {', '.join(SUFFIXES)}.")
    if not target.parent.is_dir():
        raise InputError(f"There is no folder {target.parent} to write {target.name} in; make it first.")
    return _WRITERS[kind](target, notes)


def _refuse_existing(target: str | Path, overwrite: bool) -> None:
    if not overwrite and not str(target).startswith("minari:") and Path(target).exists():
        raise InputError(f"{target} is already there; remove it, or say that it may be overwritten.")


def _begin(target: str | Path, notes: Notes, overwrite: bool) -> Writer:
    """A writer; a store has its lock now, so one that another process finished meanwhile is seen."""
    writer = writer_for(target, notes)
    try:
        _refuse_existing(target, overwrite)
    except InputError:
        writer.abandon()
        raise
    return writer


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
        writer = _begin(target, Notes(opened.metadata, layout.cost_names, layout.discrete), overwrite)
        content = Fingerprint(layout.cost_names)
        counter = EpisodeCounter(len(layout.cost_names), opened.metadata.horizon)
        done = 0
        try:
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
        except BaseException:
            writer.abandon()
            raise
        writer.finish(content.hexdigest())
    return opened.report, counter.finish()


def save(dataset: Dataset, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a dataset in the format that the name of `path` says."""
    settle(Path(path))
    _refuse_existing(path, overwrite)
    writer = _begin(path, Notes(dataset.metadata, dataset.cost_names, dataset.discrete), overwrite)
    try:
        for start in range(0, dataset.size, BLOCK_ROWS):
            writer.write(dataset.rows(start, start + BLOCK_ROWS))
    except BaseException:
        writer.abandon()
        raise
    writer.finish(dataset.fingerprint)
