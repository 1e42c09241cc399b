"""Where jobs run: worker processes of one thread each, here or on a Ray cluster.

`run_jobs` takes the work (a picklable function of a job), the jobs and the number of workers, and yields
`(job, row)` as jobs end, in any order, and None about once a second, so that its caller can show progress.
Closing it stops what runs. A job is plain data or a typed record; a row is a plain record, with `failed` (a
sentence) where the job's process died. Three engines, one interface:

    pool    processes that serve one job after the other: for many short jobs
    fresh   one process per job: nothing is left over from a job; a process that is told to end gets to save,
            and one whose parent died is told to end
    ray     tasks on a Ray cluster (the one that RAY_ADDRESS names, else one started here); the output folder
            and the data must be readable under the same paths on all of its machines
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeVar

from slater.errors import InputError, InputWarning, optional
from slater.threads import children_use_one_thread, use_one_thread

Cell = dict[str, Any]
Row = dict[str, Any]
Engine = Literal["pool", "fresh", "ray"]
Job = TypeVar("Job")
Ended = Iterator[tuple[Job, Row] | None]

KILLED = (
    "its process was killed (exit code {}; out of memory?); done again, it goes on from its last checkpoint; "
    "one at a time needs less memory"
)
#: seconds between looks at what has ended
TICK = 1.0


def key_of(cell: Mapping[str, Any]) -> str:
    """Eight digits that are other ones for other settings, for the names of files."""
    return hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()[:8]


def run_jobs(
    work: Callable[[Job], Row], jobs: Sequence[Job], *, workers: int, engine: Engine = "fresh"
) -> Generator[tuple[Job, Row] | None, None, None]:
    """Do all jobs, `workers` at a time; see the module's text. An exception of `work` is raised here."""
    if jobs:
        yield from _ENGINES[engine](work, jobs, workers)


def _pool(work: Callable[[Job], Row], jobs: Sequence[Job], workers: int) -> Ended[Job]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_start_worker
    ) as executor:
        with children_use_one_thread():
            futures = {executor.submit(work, job): job for job in jobs}
        yield from _as_they_end(futures)


def _start_worker() -> None:
    """Jobs run side by side, one per core; threads inside a job would only fight over them."""
    use_one_thread()
    warnings.simplefilter("ignore", InputWarning)  # whoever gave the jobs says it once
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    """Ask this process to save and end when its parent has died: nobody would hear of its answer."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _fresh(work: Callable[[Job], Row], jobs: Sequence[Job], workers: int) -> Ended[Job]:
    processes = _OwnProcess(work)
    with ThreadPoolExecutor(min(workers, len(jobs))) as executor:
        try:
            yield from _as_they_end({executor.submit(processes, job): job for job in jobs})
        except BaseException:
            processes.stop()
            raise


def _as_they_end(futures: Mapping[Future[Row], Job]) -> Ended[Job]:
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

    def __init__(self, work: Callable[[Any], Row]) -> None:
        self._work = work
        self._running: set[BaseProcess] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def __call__(self, job: Any) -> Row:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(sender, self._work, job))
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            with children_use_one_thread():
                process.start()
            self._running.add(process)
        sender.close()
        try:
            row, error = receiver.recv()
        except EOFError:
            process.join()
            row, error = {"failed": KILLED.format(process.exitcode)}, None
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


def _answer(sender: Connection, work: Callable[[Any], Row], job: Any) -> None:
    _start_worker()
    try:
        sender.send((work(job), None))
    except BaseException as error:
        with contextlib.suppress(OSError):  # the parent has died, and nobody listens
            sender.send((None, error))


def _ray(work: Callable[[Job], Row], jobs: Sequence[Job], workers: int) -> Ended[Job]:
    """The cluster decides how many run at once: one core each; `workers` is the size of a local one."""
    ray = optional("ray", "the engine ray needs Ray", "ray")
    local: Mapping[str, Any] = {"include_dashboard": False, "num_cpus": workers}
    # a busy machine needs longer than Ray's own 30 seconds to start a cluster
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
    try:
        ray.init(log_to_driver=False, **({} if os.environ.get("RAY_ADDRESS") else local))
    except Exception as error:  # Ray raises plain exceptions here
        where = os.environ.get("RAY_ADDRESS") or "a cluster on this machine"
        words = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"Ray cannot use {where} ({words}); take the engine local to do without.") from error

    def call(job: Job) -> Row:
        use_one_thread()
        warnings.simplefilter("ignore", InputWarning)
        return work(job)

    # max_calls: a new process for each job, as with `fresh`
    remote = ray.remote(num_cpus=1, max_calls=1, max_retries=2)(call)
    tasks = {remote.remote(job): job for job in jobs}
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


_ENGINES: Mapping[Engine, Callable[..., Ended[Any]]] = {"pool": _pool, "fresh": _fresh, "ray": _ray}
