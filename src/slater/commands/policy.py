"""`slater policy`: what a policy file says about itself."""

from __future__ import annotations

import json
from dataclasses import dataclass

from slater.commands.parse import Positional, parse, pick_name
from slater.errors import InputError


@dataclass(frozen=True)
class Info:
    """Print what a policy takes and gives (names, units, ranges), its limits, its data, how it was judged.

    Example:
        slater policy info runs/first/mixture.safetensors

    """

    file: Positional[str]
    """a .safetensors policy file, or the folder of a finished run"""
    json: bool = False
    """print JSON instead of text"""


def run(args: list[str]) -> int:
    """Entry point of `slater policy`."""
    _, rest = pick_name(args, "policy", {"info": "what a policy takes and gives: slater policy info FILE"})
    options = parse(Info, rest, "policy info")
    from slater.front import load_policy

    policy = load_policy(options.file)
    contract = getattr(policy, "contract", None)
    if contract is None:
        raise InputError(f"{options.file} says nothing about its policy: it was written without a contract.")
    print(json.dumps(contract.to_json(), indent=1) if options.json else f"{policy!r}\n{contract}")
    return 0
