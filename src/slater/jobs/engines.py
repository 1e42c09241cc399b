"""Where cells run: worker processes of one thread each, here or on a Ray cluster.

An engine takes the work, the cells and the number of workers, and yields `(cell, row)` as cells end, in any
order, and None about once a second, so that its caller can show progress. Closing it stops what runs.

    pool    processes that serve one cell after the other: for many short cells
    fresh   one process per cell: nothing is left over from a cell; a process that is told to end gets to save
    ray     tasks on a Ray cluster (the one that RAY_ADDRESS names, else one started here); the output folder
            and the data must be readable under the same paths on all of its machines
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from slater.errors import InputError

__all__ = ["ENGINES", "Cell", "Engine", "Row"]

Cell = dict[str, Any]
Row = dict[str, Any]
Engine = Literal["pool", "fresh", "ray"]
Work = Callable[[Cell], Row]
Ended = Iterator[tuple[Cell, Row] | None]

#: seconds between looks at what has ended
TICK = 1.0


def _single_thread() -> None:
    """Cells run side by side, one per core; threads inside a cell would only fight over them."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)


def _pool(work: Work, cells: Sequence[Cell], workers: int) -> Ended:
    if not cells:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers, len(cells)), mp_context=context, initializer=_single_thread
    ) as executor:
        yield from _as_they_end(executor, work, cells)


def _fresh(work: Work, cells: Sequence[Cell], workers: int) -> Ended:
    if not cells:
        return
    processes = _OwnProcess(work)
    with ThreadPoolExecutor(min(workers, len(cells))) as executor:
        try:
            yield from _as_they_end(executor, processes, cells)
        except BaseException:
            processes.stop()
            raise


def _as_they_end(executor: Executor, work: Work, cells: Sequence[Cell]) -> Ended:
    futures: dict[Future[Row], Cell] = {executor.submit(work, cell): cell for cell in cells}
    left = set(futures)
    try:
        while left:
            ended, left = wait(left, timeout=TICK, return_when=FIRST_COMPLETED)
            for future in ended:
                yield futures[future], future.result()
            yield None
    except BaseException:
        for future in futures:
            future.cancel()
        raise


class _OwnProcess:
    """Work done in a process of its own; called from several threads."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._running: set[BaseProcess] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def __call__(self, cell: Cell) -> Row:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(sender, self._work, cell))
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process.start()
            self._running.add(process)
        sender.close()
        try:
            row, error = receiver.recv()
        except EOFError:
            process.join()
            row, error = _killed(process.exitcode), None
        finally:
            process.join()
            with self._lock:
                self._running.discard(process)
        if error is not None:
            raise error
        answer: Row = row
        return answer

    def stop(self) -> None:
        """Ask every process to save and end; start no other."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def _killed(code: int | None) -> Row:
    return {
        "failed": f"its process was killed (exit code {code}; out of memory?); the same command goes on from "
        "its last checkpoint, with --workers 1 if memory is short"
    }


def _answer(sender: Connection, work: Work, cell: Cell) -> None:
    _single_thread()
    try:
        sender.send((work(cell), None))
    except BaseException as error:
        sender.send((None, error))


def _ray(work: Work, cells: Sequence[Cell], workers: int) -> Ended:
    """The cluster decides how many run at once: one core each; `workers` is the size of a local one."""
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("--engine ray needs Ray; install it with: pip install 'slater-rl[ray]'") from None
    if not cells:
        return
    local: Mapping[str, Any] = {"include_dashboard": False, "num_cpus": workers}
    # a busy machine needs longer than Ray's own 30 seconds to start a cluster
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
    try:
        ray.init(log_to_driver=False, **({} if os.environ.get("RAY_ADDRESS") else local))
    except Exception as error:  # Ray raises plain exceptions here
        where = os.environ.get("RAY_ADDRESS") or "a cluster on this machine"
        words = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"Ray cannot use {where} ({words}); give --engine local to do without.") from error

    def call(cell: Cell) -> Row:
        return work(cell)

    # max_calls: a new process for each cell, as with `fresh`
    remote = ray.remote(num_cpus=1, max_calls=1, max_retries=2)(call)
    tasks = {remote.remote(cell): cell for cell in cells}
    left = list(tasks)
    try:
        while left:
            ended, left = ray.wait(left, timeout=TICK)
            for task in ended:
                try:
                    yield tasks[task], ray.get(task)
                except ray.exceptions.RayError as error:
                    yield tasks[task], {"failed": f"Ray gave it up ({str(error).splitlines()[0]})"}
            yield None
    finally:
        ray.shutdown()


#: name -> engine
ENGINES: Mapping[Engine, Callable[[Work, Sequence[Cell], int], Any]] = {
    "pool": _pool,
    "fresh": _fresh,
    "ray": _ray,
}
