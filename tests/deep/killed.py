"""A run that is begun or gone on with, for processes that tests kill or leave without disk."""

from __future__ import annotations

import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import slater.deep as deep
from slater.data import Dataset, StoredDataset
from slater.errors import InputError

from .toy import Toy


def go_on(
    out: Path, algorithm: str, data: Dataset | Path, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Train in `out`, or resume what is there; data: in memory, or the path of a store."""
    deep.register(Toy)
    dataset = StoredDataset(data) if isinstance(data, Path) else data
    if (out / "run.json").exists():
        deep.resume(out, dataset)
    else:
        deep.train(algorithm, dataset, [5], out, options=options, **settings)


def resume_without_disk(out: Path, data: Dataset, said: Path) -> None:
    """Resume where no file may be longer than 4096 bytes; the sentence that comes of it goes to `said`."""
    deep.register(Toy)
    with said.open("w") as file:  # opened before; it is short
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes then fail with an error, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            deep.resume(out, data)
        except InputError as error:
            file.write(str(error))
