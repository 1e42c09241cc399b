import atexit
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

# one thread per process: pytest runs several, and small networks gain nothing from more;
# and quick compilation, which is most of the time of a short run
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# compiled code is shared by the tests of a process and its child processes, most of which run the same small
# program; not between test processes, which would write the same entries at the same time
if "SLATER_TEST_CACHE" not in os.environ:
    os.environ["SLATER_TEST_CACHE"] = tempfile.mkdtemp(prefix="slater-test-cache-")
    atexit.register(shutil.rmtree, os.environ["SLATER_TEST_CACHE"], ignore_errors=True)
own = Path(os.environ["SLATER_TEST_CACHE"]) / os.environ.get("PYTEST_XDIST_WORKER", "alone")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(own)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Forget compiled programs before they use up the memory maps of a process (65,530), which crashes it."""
    yield
    maps = Path("/proc/self/maps")
    if "jax" in sys.modules and maps.exists() and maps.read_bytes().count(b"\n") > 15_000:
        sys.modules["jax"].clear_caches()
        gc.collect()
