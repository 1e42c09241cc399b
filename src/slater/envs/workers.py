"""Processes that run episodes: spawned, one thread each, one environment each, busy until none are left."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

from slater.envs.episode import Episode, RunSettings, run_episode
from slater.envs.making import make
from slater.errors import InputError
from slater.policy import Policy
from slater.threads import children_use_one_thread

Job = tuple[Policy, str, dict[str, Any], RunSettings]

#: two workers on two cores want one thread each; JAX's CPU runtime reads this one
_ONE_CORE = {"NPROC": "1"}


def _answers(channel: Connection) -> Iterator[tuple[str, Any]]:
    """What a worker replies to each message: `("done", episode or None)`, until it is told to stop."""
    policy: Policy
    settings: RunSettings
    env: Any = None
    made_from: Any = None
    while (message := channel.recv()) is not None:
        if isinstance(message, bytes):
            try:
                policy, env_id, options, settings = pickle.loads(message)
            except Exception as error:
                raise InputError(
                    f"the policy cannot be read in a worker process ({type(error).__name__}: {error}); "
                    "define it in a module that can be imported, or use one worker."
                ) from error
            if (env_id, options) != made_from:
                if env is not None:
                    env.close()
                env, made_from = make(env_id, **options), (env_id, options)
            yield "done", None
        else:
            yield "done", run_episode(policy, env, message, settings)


def _serve(channel: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    try:
        for answer in _answers(channel):
            channel.send(answer)
    except InputError as error:
        channel.send(("input error", str(error)))
    except EOFError:
        pass  # the parent is gone
    except Exception:
        with contextlib.suppress(OSError):  # the parent died while it waited, and nobody listens
            channel.send(("failure", traceback.format_exc()))


class Workers:
    """A set of worker processes, kept between rollouts; use it in a `with` statement.

    They start at the first rollout (about a second), and end with the block.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise InputError(f"the number of workers is {count}; it must be at least 1.")
        self.count = count
        self._processes: dict[Connection, SpawnProcess] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, at once."""
        for channel, process in self._processes.items():
            process.terminate()
            process.join()
            channel.close()
        self._processes.clear()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        with children_use_one_thread(_ONE_CORE):
            while len(self._processes) < self.count:
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                self._processes[ours] = process

    def _receive(self, channel: Connection) -> Episode | None:
        try:
            kind, value = channel.recv()
        except (EOFError, ConnectionResetError):
            process = self._processes[channel]
            process.join()
            raise InputError(
                f"a worker process ended with exit code {process.exitcode}; a program that starts workers "
                "must be a file whose main part stands under `if __name__ == '__main__':`."
            ) from None
        if kind == "input error":
            raise InputError(value)
        if kind == "failure":
            raise RuntimeError(f"a worker process failed:\n{value}")
        episode: Episode | None = value
        return episode

    def _send(self, channel: Connection, message: Any) -> None:
        try:
            channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            while True:  # it has ended: what it said last, or its exit code, is the error
                self._receive(channel)

    def prepare(self, job: Job) -> None:
        """Start the processes and give each its policy and environment."""
        try:
            payload = pickle.dumps(job)
        except Exception as error:
            raise InputError(
                f"the policy cannot be sent to worker processes ({type(error).__name__}: {error}); make it "
                "picklable, or use one worker."
            ) from error
        try:
            self._start()
            for channel in self._processes:
                self._send(channel, payload)
            for channel in self._processes:
                self._receive(channel)
        except BaseException:
            self.close()
            raise

    def episodes(self, indices: Sequence[int]) -> Iterator[Episode]:
        """Run these episodes of the prepared job; they come in the order in which they end."""
        waiting = list(reversed(indices))
        owed = dict.fromkeys(self._processes, 0)

        def give(channel: Connection) -> None:
            # One episode ahead, so that a worker does not wait for this process, which may be slow to be
            # scheduled; not near the end, where it might wait for one worker while another is idle.
            while waiting and (owed[channel] == 0 or (owed[channel] == 1 and len(waiting) > len(owed))):
                self._send(channel, waiting.pop())
                owed[channel] += 1

        try:
            for channel in owed:
                give(channel)
            while busy := [channel for channel, count in owed.items() if count]:
                ready = wait(busy)
                for channel in [channel for channel in busy if channel in ready]:
                    episode = self._receive(channel)
                    assert episode is not None
                    owed[channel] -= 1
                    give(channel)
                    yield episode
        except BaseException:
            self.close()
            raise
