"""Where episodes begin in raw columns, and whether their rows are in the order of time, without gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.findings import Findings
from slater.encoding import seconds_of

#: A step of time longer than this many usual ones is a gap.
_GAP = 1.5
Block = Mapping[str, NDArray[Any]]


class EpisodeBegins:
    """Says of each raw block, in order, which of its rows begin an episode."""

    def __init__(self) -> None:
        self._label: Any = None
        self._ended = True

    def of(self, block: Block) -> NDArray[np.bool_]:
        """Shape (N,): by labels where there are any, else by the flags."""
        size = len(block["observations"])
        begins = np.zeros(size, dtype=np.bool_)
        begins[0] = self._ended
        if "episode" in block:
            labels = np.asarray(block["episode"]).reshape(-1)
            begins[1:] = labels[1:] != labels[:-1]
            begins[0] |= bool(labels[0] != self._label)
            self._label, self._ended = labels[-1], False
            return begins
        ends = np.zeros(size, dtype=np.bool_)
        for name in ("terminals", "timeouts"):
            if name in block:
                ends |= np.asarray(block[name]).reshape(size) == 1
        begins[1:] = ends[:-1]
        self._ended = bool(ends[-1])
        return begins


def watch_time(blocks: Iterable[Block], findings: Findings) -> Iterator[dict[str, NDArray[Any]]]:
    """The blocks without their column `time`, which is checked on the way: within an episode it increases.

    Numbers in any unit, or times of day; the usual step is the median one of the first block.
    """
    starts = EpisodeBegins()
    offset, last, usual = 0, np.nan, None
    for block in blocks:
        if "time" not in block or len(block["observations"]) == 0:
            yield dict(block)
            continue
        begins, times = starts.of(block), seconds_of(block["time"])
        if times is None:
            findings.add("warning", "time", "cannot be read as numbers or times, so gaps are not looked for")
        else:
            steps = np.diff(times, prepend=last)
            inside = ~begins & np.isfinite(steps)
            back = "goes back within an episode; sort the rows of each episode by time"
            findings.add("error", "time", back, offset + np.flatnonzero(inside & (steps < 0)))
            same = "is that of the row before, in the same episode"
            findings.add("warning", "time", same, offset + np.flatnonzero(inside & (steps == 0)))
            forward = steps[inside & (steps > 0)]
            if usual is None and len(forward):
                usual = float(np.median(forward))
            if usual is not None:
                gap = f"has a gap: more than {_GAP:g} times the usual step of {usual:g} since the row before"
                far = inside & (steps > _GAP * usual)
                findings.add("warning", "time", gap, offset + np.flatnonzero(far))
            last = times[-1]
        offset += len(block["observations"])
        yield {name: values for name, values in block.items() if name != "time"}
