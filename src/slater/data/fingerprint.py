"""What a row holds, and a hash of all rows that does not depend on the format they are kept in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.names import NameCodes

#: Everything a row holds, in the order in which fields are hashed and stored.
ROW_FIELDS = (
    "observations",
    "actions",
    "rewards",
    "costs",
    "terminals",
    "timeouts",
    "next_observations",
    "next_known",
)
#: What a log may remember besides: how likely each action was, and which policy took it.
OPTIONAL_FIELDS = ("propensity", "source")


class Fingerprint:
    """SHA-256 over rows that arrive in blocks (mappings from `ROW_FIELDS` to arrays of equal length).

    One running hash per field, so that the result does not depend on how the rows were cut in blocks.
    `OPTIONAL_FIELDS` count where they are in the blocks; without them nothing of them enters the hash.
    """

    def __init__(self, cost_names: Sequence[str]) -> None:
        self._cost_names = list(cost_names)
        self._hashes = {name: hashlib.sha256() for name in ROW_FIELDS}
        self._shapes: dict[str, str] = {}
        self._size = 0
        self._sources = NameCodes()

    def update(self, block: Mapping[str, NDArray[Any]]) -> None:
        """Take the next rows."""
        for name in (*ROW_FIELDS, *(name for name in OPTIONAL_FIELDS if name in block)):
            array = np.ascontiguousarray(block[name])
            if name == "source":  # by codes: the text's width in memory says nothing
                array = self._sources.encode(array)
            self._hashes.setdefault(name, hashlib.sha256())
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            self._hashes[name].update(little.reshape(-1).view(np.uint8).data)
            self._shapes[name] = f"{array.shape[1:]} {array.dtype.kind}{array.dtype.itemsize}"
        self._size += len(block["rewards"])

    def hexdigest(self) -> str:
        """The fingerprint of all rows so far."""
        summary: dict[str, Any] = {
            "cost_names": self._cost_names,
            "size": self._size,
            "shapes": self._shapes,
            "fields": {name: digest.hexdigest() for name, digest in self._hashes.items()},
        }
        if self._sources.names:
            summary["sources"] = self._sources.names
        return hashlib.sha256(json.dumps(summary, sort_keys=True).encode()).hexdigest()
