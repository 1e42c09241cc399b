import gc
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

# one thread per process: pytest runs several, and small networks gain nothing from more; and quick
# compilation, which is most of the time of a short run: without the fusion emitters it takes less than half
FLAGS = (
    "--xla_cpu_multi_thread_eigen=false", "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true", "--xla_cpu_use_fusion_emitters=false",
)  # fmt: skip
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# compiled code is shared by all test processes, their children and later runs; a limit of its size makes JAX
# lock the folder, without which one process may read what another has half written
cache = Path(os.environ.get("SLATER_TEST_CACHE") or Path(__file__).parent.parent / ".test_cache" / "jax")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2 * 1024**3)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Forget compiled programs before they use up the memory maps of a process (65,530), which crashes it."""
    yield
    maps = Path("/proc/self/maps")
    if "jax" in sys.modules and maps.exists() and maps.read_bytes().count(b"\n") > 15_000:
        sys.modules["jax"].clear_caches()
        gc.collect()


def pytest_terminal_summary(terminalreporter):
    """What a green run has not run is not tested: every part that was skipped, and what brings it."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.section("not tested here")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
