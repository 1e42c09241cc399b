"""One thread per process: what numerical libraries read from the environment, in one place.

Many small computations go fastest as processes of one thread each. A run uses one thread alone as well as in
company, so its bits do not depend on what runs beside it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping

#: read by numerical libraries when they are loaded
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
#: read by XLA at its first computation
_XLA = "--xla_cpu_multi_thread_eigen=false"
_environment_lock = threading.Lock()


def _settings() -> dict[str, str]:
    flags = os.environ.get("XLA_FLAGS", "")
    if _XLA not in flags.split():
        flags = f"{flags} {_XLA}".strip()
    return {**dict.fromkeys(_VARIABLES, "1"), "XLA_FLAGS": flags}


def use_one_thread() -> None:
    """Let this process compute with one thread from now on; before JAX computes anything."""
    from threadpoolctl import threadpool_limits

    os.environ.update(_settings())
    threadpool_limits(1)  # libraries that are loaded already do not read the environment again


@contextlib.contextmanager
def children_use_one_thread(more: Mapping[str, str] | None = None) -> Iterator[None]:
    """One thread, and `more` variables, in the environment that a process started in here inherits."""
    with _environment_lock:
        settings = {**_settings(), **(more or {})}
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
