import ctypes
import gc
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# how long an example takes says how busy the machine is, not whether the property holds
settings.register_profile("slater", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slater")
# tests start many processes that import Slater: its bytecode is kept, also where the environment says not to
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# looking for cycles of garbage is a tenth of the time of tracing and compiling; seldom is enough
gc.set_threshold(50_000, 20, 100)

# one thread per process: pytest runs several, and small networks gain nothing from more; and quick
# compilation, which is most of the time of a short run: without the fusion emitters it takes half as long,
# and a program that is not split for several threads of the compiler takes an eighth less again
FLAGS = (
    "--xla_cpu_multi_thread_eigen=false", "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true", "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)  # fmt: skip
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# compiled code is shared by all test processes, their children and later runs; what compiles in less time is
# not worth reading. A limit of its size would make JAX look at every file for each one that it adds. A file
# that is read while another process writes it fails to decompress, and the code is compiled again
CACHE = Path(os.environ.get("SLATER_TEST_CACHE") or Path(__file__).parent.parent / ".test_cache" / "jax")
CACHE_BYTES = 2 * 1024**3
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# models of logs are made in the tests, not found in the cache of whoever runs them
MODELS = tempfile.TemporaryDirectory(prefix="slater-models-")
os.environ["SLATER_CACHE"] = MODELS.name


def pytest_configure(config):
    """Empty the cache of compiled code when it has grown too large; once, before workers begin."""
    if not hasattr(config, "workerinput") and CACHE.is_dir():
        files = list(CACHE.iterdir())
        if sum(file.stat().st_size for file in files) > CACHE_BYTES:
            for file in files:
                file.unlink(missing_ok=True)


def pytest_collection_modifyitems(items):
    """What takes long begins first: at the end, the workers are left with tests of less than a second."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish(session):
    """What was imported for the tests is not garbage: it is not looked at again."""
    gc.collect()
    gc.freeze()


#: compiled programs of a process are forgotten beyond so many memory maps (65,530 crash it) or bytes
MOST_MAPS, MOST_BYTES = 15_000, 3 * 1024**3


@pytest.fixture(autouse=True)
def little_memory():
    """Forget compiled programs before they use up the memory of two workers; what is free goes back to the
    system, which glibc by itself does not do.
    """
    yield
    maps, size = Path("/proc/self/maps"), Path("/proc/self/statm")
    if "jax" not in sys.modules or not maps.exists():
        return
    held = int(size.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if held > MOST_BYTES or maps.read_bytes().count(b"\n") > MOST_MAPS:
        sys.modules["jax"].clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)


def pytest_terminal_summary(terminalreporter):
    """What a green run has not run is not tested: every part that was skipped, and what brings it."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.section("not tested here")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
