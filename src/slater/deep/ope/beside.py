"""Work side by side in threads: XLA computes without Python's lock, so that a second core takes a share.

What each piece computes does not depend on what runs beside it: the bits are those of one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import Any

from slater.deep.ope.base import Tick

__all__ = ["side_by_side"]

#: seconds between two words on the work
TOLD_EVERY = 0.2


def side_by_side(
    works: Sequence[Callable[[Tick], Any]], steps: Sequence[int], what: str, tick: Tick | None = None,
    most: int = 2,
) -> list[Any]:  # fmt: skip
    """What each of `works` gives, at most `most` of them at a time.

    Each takes a `Tick`, which it calls now and then, and by which it is ended when the others fail or Ctrl-C
    is pressed. steps: of each work; `tick` hears of all of them together as `what`.
    """
    ended, done = threading.Event(), [0] * len(works)

    def heard(number: int) -> Tick:
        def own(_: str, part: int, total: int) -> None:
            if ended.is_set() and part < total:
                raise CancelledError(what)
            done[number] = round(steps[number] * part / max(total, 1))

        return own

    with ThreadPoolExecutor(most, thread_name_prefix="beside") as pool:
        futures = [pool.submit(work, heard(number)) for number, work in enumerate(works)]
        try:
            pending: Any = set(futures)
            while pending and not any(f.done() and f.exception() for f in futures):
                _, pending = wait(pending, TOLD_EVERY, FIRST_EXCEPTION)
                if tick is not None:
                    tick(what, sum(done), sum(steps))
            return [future.result() for future in futures]
        finally:
            ended.set()
            for future in futures:
                future.cancel()
