"""Minari datasets, read and written through the `minari` package; no environment is ever made.

`minari:ID` is a dataset of the local Minari collection; the path of a dataset's folder works too. An
episode of T steps holds T + 1 observations there, so every next observation is known. Costs are taken
from `infos` ("cost", or a mapping "costs" of named costs), or from the fields named in the column map,
e.g. costs=infos/speed,infos/heat. Where infos also has the entry of the reset (T + 1 of them), that is
left out. `infos/propensity` and `infos/source` (text of fixed length, or numbers) are read and written
where they are known. Observations that are mappings are flattened, entries in the order of their names.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from slater.data.assemble import Block, Column
from slater.data.fingerprint import OPTIONAL_FIELDS
from slater.data.formats.base import (
    BLOCK_ROWS,
    Notes,
    Reader,
    ReadOptions,
    Writer,
    damaged,
    listing,
    mapped_roles,
)
from slater.data.formats.hdf5_guard import check_sizes
from slater.data.metadata import Metadata
from slater.errors import InputError, optional

_NOTES = "slater"


def _minari() -> Any:
    return optional("minari", "Minari datasets need the minari package", "minari")


def _inside(folder: Path) -> Path:
    """The folder that holds metadata.json and the data."""
    return folder / "data" if (folder / "data").is_dir() else folder


def is_minari(path: str | Path) -> bool:
    """Whether a path means a Minari dataset: "minari:ID", or a folder with Minari's metadata."""
    return str(path).startswith("minari:") or (_inside(Path(path)) / "metadata.json").is_file()


def _folder(path: str) -> Path:
    if not path.startswith("minari:"):
        return _inside(Path(path))
    identity = path.removeprefix("minari:")
    root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    folder = Path(root).joinpath(*identity.split("/")) / "data"
    if not folder.is_dir():
        raise InputError(
            f"There is no Minari dataset {identity!r} under {root}; "
            f"run `minari download {identity}`, or give the path of its folder."
        )
    return folder


class MinariReader(Reader):
    """Reads a Minari dataset episode by episode."""

    format = "minari"
    whole_episodes = True

    def __init__(self, path: str, options: ReadOptions) -> None:
        self.name = path
        self._folder = _folder(path)
        self._options = options
        _minari()
        with self._whole(path):
            notes = json.loads((self._folder / "metadata.json").read_text())
            self._storage = self._open(notes)
            self._episodes = int(notes["total_episodes"])
            action_space = self._storage.action_space
        self._read_notes(notes, action_space)
        first = next(self._read(), None)
        if first is None:
            raise InputError(f"{path} holds no episodes.")
        total = notes.get("total_steps")
        rows = total if isinstance(total, int) and total > 0 else None
        self.columns = {role: Column(rows, a.shape[1:], a.dtype) for role, a in first.items()}

    def _open(self, notes: Mapping[str, Any]) -> Any:
        import gymnasium
        from minari.dataset._storages import get_minari_storage
        from minari.dataset.minari_storage import MinariStorage

        if "observation_space" in notes and "action_space" in notes:
            return MinariStorage.read(self._folder)
        # Minari would make the environment to learn the spaces; plain arrays can be read without them
        return get_minari_storage(notes["data_format"])(self._folder, gymnasium.Space(), gymnasium.Space())

    @contextmanager
    def _whole(self, what: str) -> Iterator[None]:
        """The package, and the spaces that it decodes, raise anything on bad input."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            damaged(what, error, "Minari dataset")

    def _read_notes(self, notes: Mapping[str, Any], action_space: Any) -> None:
        own = notes.get(_NOTES)
        if isinstance(own, str):
            self.adopt(Notes.parse(self.name, own), own_costs="costs" not in self._options.columns)
            return
        env_id = horizon = None
        try:
            spec = json.loads(notes.get("env_spec") or "{}")
            env_id, horizon = spec.get("id"), spec.get("max_episode_steps")
        except (ValueError, AttributeError):
            pass  # the environment's name is a comfort, not data
        low: Any = getattr(action_space, "low", None)
        high: Any = getattr(action_space, "high", None)
        bounded = low is not None and high is not None and np.isfinite(low).all() and np.isfinite(high).all()
        self.metadata = Metadata(
            env_id=env_id if isinstance(env_id, str) else None,
            horizon=horizon if isinstance(horizon, int) and horizon > 0 else None,
            action_low=tuple(np.ravel(low).tolist()) if bounded else None,
            action_high=tuple(np.ravel(high).tolist()) if bounded else None,
            num_actions=int(action_space.n) if hasattr(action_space, "n") else None,
        )
        if getattr(action_space, "start", 0) != 0:
            raise InputError(f"{self.name}: its discrete actions do not start at 0, which is not supported.")

    def _read(self) -> Iterator[dict[str, NDArray[Any]]]:
        file = self._folder / "main_data.hdf5"  # where Minari keeps the format hdf5
        with ExitStack() as stack:
            with self._whole(self.name):
                guard = stack.enter_context(h5py.File(file, "r")) if file.is_file() else {}
                episodes = iter(self._storage.get_episodes(range(self._episodes)))
            for number in range(self._episodes):
                with self._whole(f"{self.name}, episode {number}"):
                    if f"episode_{number}" in guard:
                        check_sizes(guard[f"episode_{number}"])
                    episode = next(episodes, None)
                    if episode is None:
                        raise InputError(
                            f"{self.name} says it has {self._episodes} episodes but holds {number}."
                        )
                    block = self._columns_of(episode, number)
                if block is not None:
                    yield block

    def _columns_of(self, episode: Mapping[str, Any], number: int) -> dict[str, NDArray[Any]] | None:
        steps = len(episode["rewards"])
        if steps == 0:
            return None
        observations = _flat(episode["observations"])
        if len(observations) != steps + 1:
            raise InputError(
                f"{self.name}, episode {number}: {len(observations)} observations for {steps} steps; "
                f"there should be {steps + 1}."
            )
        block = {
            "observations": observations[:-1],
            "next_observations": observations[1:],
            "actions": _flat(episode["actions"]),
            "rewards": np.asarray(episode["rewards"]),
            "terminals": np.asarray(episode["terminations"]),
            "timeouts": np.asarray(episode["truncations"]),
            "costs": self._costs(episode, steps, number),
            # an episode ends where Minari says, even if neither flag is set on its last step
            "episode": np.full(steps, number),
        }
        infos = episode.get("infos") or {}
        found = {role: (f"infos/{role}",) for role in OPTIONAL_FIELDS if role in infos}
        block = {role: values for role, values in block.items() if self._options.columns.get(role, True)}
        for role, names in mapped_roles(self.name, found, self._options).items():
            if role != "costs":
                block[role] = self._fields(episode, names, steps, number)
        return block

    def _fields(
        self, episode: Mapping[str, Any], names: Sequence[str], steps: int, number: int
    ) -> NDArray[Any]:
        """Fields of an episode side by side, (steps, width), without the entry of the reset."""
        parts = []
        for name in names:
            values = _field(self.name, episode, name, number)
            if len(values) not in (steps, steps + 1):
                raise InputError(
                    f"{self.name}, episode {number}: {name} has {len(values)} entries for {steps} steps."
                )
            parts.append(values[len(values) - steps :].reshape(steps, -1))
        return np.concatenate(parts, axis=1)

    def _costs(self, episode: Mapping[str, Any], steps: int, number: int) -> NDArray[Any]:
        named = self._options.columns.get("costs")
        infos = episode.get("infos") or {}
        if named is None and isinstance(infos.get("costs"), Mapping):
            # HDF5 groups come back in the order of names; our own notes know the order of the costs
            named = tuple(f"infos/costs/{key}" for key in self.cost_names or infos["costs"])
        elif named is None:
            named = tuple(f"infos/{key}" for key in ("cost", "costs") if key in infos)[:1] or None
        if named is None:
            raise InputError(
                f"{self.name}, episode {number}: infos has no cost (it has {listing(infos)}); "
                "name the field in the column map, costs=infos/NAME."
            )
        if len(named) > 1 and self.cost_names is None:
            self.cost_names = tuple(name.rpartition("/")[2] for name in named)
        return self._fields(episode, named, steps, number)

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Whole episodes, gathered until there are about `rows` rows."""
        held: list[dict[str, NDArray[Any]]] = []
        for block in self._read():
            if odd := sorted(block.keys() ^ self.columns.keys()):
                raise InputError(f"{self.name}: some episodes have {', '.join(odd)} and others have not.")
            if any(a.shape[1:] != self.columns[role].tail for role, a in block.items()):
                raise InputError(f"{self.name}: episodes differ in the shape of their columns.")
            held.append(block)
            if sum(len(one["rewards"]) for one in held) >= rows:
                yield _join(held)
                held = []
        if held:
            yield _join(held)


def _join(blocks: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {role: np.concatenate([block[role] for block in blocks]) for role in blocks[0]}


def _flat(value: Any) -> NDArray[Any]:
    if isinstance(value, Mapping):
        value = tuple(value[key] for key in sorted(value))
    if isinstance(value, tuple):
        flat = [_flat(part) for part in value]
        return np.concatenate([part.reshape(len(part), -1) for part in flat], axis=1)
    array = np.asarray(value)
    return array if array.ndim <= 2 else array.reshape(len(array), -1)


def _field(name: str, episode: Mapping[str, Any], path: str, number: int) -> NDArray[Any]:
    value: Any = episode
    for key in path.split("/"):
        if not isinstance(value, Mapping) or key not in value:
            known = listing(value) if isinstance(value, Mapping) else "no names"
            raise InputError(
                f"{name}, episode {number}: there is no field {path!r} ({key!r} is not among {known})."
            )
        value = value[key]
    array = np.asarray(value)
    if array.ndim == 0:
        raise InputError(f"{name}, episode {number}: the field {path!r} is a single value, not one per step.")
    return array


class MinariWriter(Writer):
    """Writes `minari:ID` into the local Minari collection, episode by episode."""

    def __init__(self, path: str, notes: Notes) -> None:
        if not path.startswith("minari:"):
            raise InputError(
                f"Minari datasets are written as minari:ID (as minari:bullet/ball-v0), not {path}."
            )
        self._minari = _minari()
        self._identity = path.removeprefix("minari:")
        self._notes = notes
        self._blocks: list[Block] = []

    def write(self, rows: Block) -> None:
        """Keep rows; Minari's buffers are in memory too."""
        self._blocks.append(rows)

    def finish(self, fingerprint: str) -> None:
        """Make the dataset."""
        rows = {name: np.concatenate([block[name] for block in self._blocks]) for name in self._blocks[0]}
        buffers = self._buffers(rows)
        from gymnasium import spaces

        meta = self._notes.metadata
        if self._notes.discrete:
            action_space: Any = spaces.Discrete(meta.num_actions or int(rows["actions"].max()) + 1)
        else:
            wide, given = rows["actions"].shape[1:], ((meta.action_low, -np.inf), (meta.action_high, np.inf))
            low, high = (np.full(wide, end if b is None else b, np.float32) for b, end in given)
            action_space = spaces.Box(low, high, dtype=np.float32)
        try:
            with warnings.catch_warnings():
                # about authors and permalinks, which a conversion has none of
                warnings.simplefilter("ignore")
                dataset = self._minari.create_dataset_from_buffers(
                    self._identity,
                    buffers,
                    observation_space=spaces.Box(-np.inf, np.inf, rows["observations"].shape[1:], np.float32),
                    action_space=action_space,
                    data_format="hdf5",
                    description="Converted by Slater.",
                )
            dataset.storage.update_metadata({_NOTES: self._notes.to_text(fingerprint)})
        except Exception as error:  # the package raises anything: names it refuses, folders it cannot make
            detail = " ".join(str(error).split())[:200]
            raise InputError(f"minari:{self._identity} cannot be written: {detail}.") from None

    def _buffers(self, rows: Block) -> list[Any]:
        from minari.data_collector import EpisodeBuffer

        ends = rows["terminals"] | rows["timeouts"]
        inside = ~ends[:-1]
        follows = np.array_equal(rows["next_observations"][:-1][inside], rows["observations"][1:][inside])
        for fits, what in (
            (ends[-1], "whole episodes, but the last one has no end; leave it out first"),
            (
                rows["next_known"].all(),
                "the observation after the last step of an episode; this data does not have it",
            ),
            (follows, "one observation per step; here next observations are not the following rows"),
        ):
            if not fits:
                raise InputError(f"Minari stores {what}.")
        remembered = {name: rows[name] for name in OPTIONAL_FIELDS if name in rows}
        if "source" in remembered:
            remembered["source"] = np.char.encode(remembered["source"], "utf-8")
        buffers, start = [], 0
        for number, stop in enumerate((np.flatnonzero(ends) + 1).tolist()):
            part, start = slice(start, stop), stop
            costs = rows["costs"][part]
            infos: dict[str, Any] = {name: values[part] for name, values in remembered.items()}
            infos["cost"] = costs.sum(axis=1)
            if self._notes.cost_names != ("cost",):
                infos["costs"] = {name: costs[:, k] for k, name in enumerate(self._notes.cost_names)}
            last = rows["next_observations"][stop - 1][None]
            buffers.append(
                EpisodeBuffer(
                    id=number,
                    observations=np.concatenate([rows["observations"][part], last]),
                    actions=rows["actions"][part],
                    rewards=rows["rewards"][part],
                    terminations=rows["terminals"][part],
                    truncations=rows["timeouts"][part],
                    infos=infos,
                )
            )
        return buffers
