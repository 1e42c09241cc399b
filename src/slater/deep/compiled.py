"""Compiled code: what processes and the runs of one share, and what is run but once."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import platform
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import jax

#: seconds of compilation from which code is worth keeping; bytes that are kept, the latest used
_WORTH, _ROOM = 0.2, 2**29

#: of LLVM's levels the one that takes half the time of the default and gives its bits (level 0 does not);
#: who sets the level for everything has it here too
_QUICK = (
    {} if "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    else {"xla_backend_optimization_level": 1}
)  # fmt: skip

#: the newest last, by what made it and from what
_COMPILED: OrderedDict[tuple[Callable[..., Any], bytes], Any] = OrderedDict()
_MOST = 16

Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def user_cache() -> Path:
    """Where what can be made again is kept: SLATER_CACHE, or `slater` in the user's cache folder."""
    own = os.environ.get("SLATER_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slater"


def keep_compiled() -> None:
    """Let JAX keep compiled code in `user_cache()` for later processes: of a small log's time half is
    compilation, and the runs of a sweep compile the same.

    In a folder for each kind of processor, since code is made for one. Where JAX was told of a folder
    (JAX_COMPILATION_CACHE_DIR) it stays.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None:
        return
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else [platform.processor()]
    kind = next((line for line in lines if line.startswith("flags")), lines[0] if lines else "")
    digest = hashlib.sha256(f"{platform.machine()} {kind}".encode()).hexdigest()[:8]
    config.update("jax_compilation_cache_dir", str(user_cache() / "compiled" / digest))
    config.update("jax_persistent_cache_min_compile_time_secs", _WORTH)
    config.update("jax_compilation_cache_max_size", _ROOM)


def jit_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` for code that runs once, such as the drawing of first weights: it is quicker to compile.

    Networks have many shapes, and their random numbers take longer to compile than to draw.
    """
    quick: Callable[..., Any] = jax.jit(function, compiler_options=_QUICK)
    return quick


def quick_key(seed: int) -> jax.Array:
    """A key for code that runs once on a log: its numbers are a third quicker to compile than those of the
    default generator, and other ones on another kind of device.
    """
    return jax.random.key(seed, impl="unsafe_rbg")


def quick_draws(key: jax.Array) -> jax.Array:
    """A key of that kind for what follows, from one of the default kind; the default's take 20 rounds each to
    split, and as many to draw, of which each is compiled.
    """
    data = jax.random.key_data(key)
    return jax.random.wrap_key_data(jax.numpy.concatenate([data, data[::-1]]), impl="unsafe_rbg")


def shared(make: Callable[..., Compiled], *of: Any) -> Compiled:
    """`make(*of)`, a jitted function, or what an earlier call with equal `of` gave.

    Equal means equal to the bit: settings, arrays, and functions of the same code that enclose the same.
    """
    if (digest := _digest(of)) is None:
        return make(*of)
    made: Compiled = _COMPILED.pop((make, digest), None) or make(*of)
    _COMPILED[make, digest] = made
    while len(_COMPILED) > _MOST:
        _COMPILED.popitem(last=False)
    return made


def _digest(of: tuple[Any, ...]) -> bytes | None:
    """Different for different values; None where that cannot be told."""
    written = io.BytesIO()
    try:
        _Writer(written).dump(of)
    except (pickle.PicklingError, TypeError, AttributeError):  # somebody else's algorithm may hold anything
        return None
    return hashlib.sha256(written.getvalue()).digest()


class _Writer(pickle.Pickler):
    """Writes local functions too (Optax makes some): by their code and by what they enclose."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, FunctionType) or "<locals>" not in obj.__qualname__:
            return NotImplemented
        enclosed = tuple(cell.cell_contents for cell in obj.__closure__ or ())
        # nobody reads it back; the code lives as long as what was made from it
        return id, (id(obj.__code__), obj.__defaults__, obj.__kwdefaults__, enclosed)
