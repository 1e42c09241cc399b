"""Making datasets: soft actor-critic on R - lambda*C, recorded, thinned and written as DSRL files."""

try:
    from slater.collect.plan import Plan, collect
    from slater.collect.sac import SACConfig
except ModuleNotFoundError as error:
    if error.name not in ("jax", "equinox", "optax"):
        raise
    from slater.errors import InputError

    raise InputError("collecting data trains policies with JAX; run: pip install 'slater-rl[deep]'") from None

__all__ = ["Plan", "SACConfig", "collect"]
