"""Names of sources: who took the actions of an episode, whatever type a file keeps that in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.encoding import as_text


def as_names(values: NDArray[Any]) -> NDArray[np.str_]:
    """Text of shape (N,) from text, bytes or numbers; the empty text where there is none (None, NaN)."""
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind == "U":
        return flat
    if flat.dtype.kind in "iub":
        return flat.astype(np.str_)
    found = flat.tolist()
    texts = {value: as_text(value) for value in dict.fromkeys(found)}
    return np.array([texts[value] for value in found], dtype=np.str_)


def named_codes(codes: NDArray[Any], names: NDArray[Any]) -> NDArray[np.str_]:
    """The name of each code, as `NameCodes` gave them; the empty text for a code without a name."""
    table = as_names(names)
    if codes.dtype.kind not in "iu":
        return as_names(codes)
    known = (codes >= 0) & (codes < len(table))
    padded = np.concatenate([table, np.array([""])])
    return padded[np.where(known, codes, len(table)).reshape(-1)]


class NameCodes:
    """Numbers for names in the order in which they first appear: 0, 1, ...; what files store per row."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The names seen so far; a name's code is its place."""
        return list(self._codes)

    def encode(self, names: NDArray[np.str_]) -> NDArray[np.int32]:
        """The code of each name, shape (N,); new names get the next numbers."""
        distinct, first, inverse = np.unique(names, return_index=True, return_inverse=True)
        codes = np.empty(len(distinct), dtype=np.int32)
        for place in np.argsort(first):
            codes[place] = self._codes.setdefault(str(distinct[place]), len(self._codes))
        return codes[inverse.reshape(-1)]
