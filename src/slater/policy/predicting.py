"""A policy asked about many rows at once, as a table has them: names in, names out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.encoding import Encoding, encode_rows, is_table
from slater.errors import InputError
from slater.policy.contract import Contract

__all__ = ["observations_of", "predict"]


def observations_of(rows: Any, contract: Contract | None) -> NDArray[Any]:
    """Observations, (N, obs_dim), from rows of a table by the names that the contract has, or as they are."""
    if not is_table(rows):
        return np.atleast_2d(np.asarray(rows))
    if contract is None:
        raise InputError("this policy does not say which columns it takes; give observations as an array.")
    columns = contract.columns or tuple(Encoding(entry.name) for entry in contract.observations)
    return encode_rows(columns, rows)


def predict(
    policy: Any, rows: Any, *, seed: int = 0, deterministic: bool = False, episode: ArrayLike | None = None
) -> NDArray[Any]:
    """Actions for N rows: (N, action_dim), or (N,) if discrete, by name where the data named them.

    rows: a pandas, Polars or Arrow table, a dict of columns (or of one row), a list of dicts, with the
    columns of the data that the policy was learned from, raw; or an array (N, obs_dim). episode: (N,) labels:
    the rows of an episode, in the order of time, are played by one member of a mixture; without it each row
    draws its own, and a policy that remembers its episode, by its own actions, refuses to act. seed: of all
    draws; deterministic: the likeliest action rather than a drawn one.
    """
    contract: Contract | None = policy.contract
    observations, rng = observations_of(rows, contract), np.random.default_rng(seed)
    if episode is None:
        if any(hasattr(member, "history") for member in getattr(policy, "members", (policy,))):
            raise InputError(
                "this policy remembers its episode: give whole episodes in the order of time, and a label "
                "per row, as episode=."
            )
        actions = policy.act(observations, rng=rng, deterministic=deterministic)
    else:
        labels = np.asarray(episode).reshape(-1).tolist()
        if len(labels) != len(observations):
            raise InputError(
                f"{len(labels)} labels of episodes for {len(observations)} rows; give one per row."
            )
        actors = {
            label: policy.begin(rng=rng, deterministic=deterministic) for label in dict.fromkeys(labels)
        }
        pairs = zip(labels, observations, strict=True)
        actions = np.stack([np.asarray(actors[label].act(row)) for label, row in pairs])
    names = () if contract is None else contract.action_names
    if contract is not None and contract.num_actions is not None and len(names) == contract.num_actions:
        return np.array(names, dtype=object)[np.asarray(actions)]
    return np.asarray(actions)
