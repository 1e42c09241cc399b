"""`slater export`: a policy for controllers that do not run Python."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slater.commands.parse import Positional, parse
from slater.disk import digest_of, read_json
from slater.errors import InputError
from slater.runs import open_run


@dataclass(frozen=True)
class Options:
    """A policy as an ONNX file, with its normaliser and bounds inside.

    Examples:
        slater export runs/first --onnx policy.onnx
        slater export runs/first/policy.safetensors --onnx last.onnx

    """

    policy: Positional[Path]
    """a run (its mixture is exported) or a policy file"""
    onnx: Path
    """the file to write"""


def run(args: list[str]) -> int:
    """Entry point of `slater export`."""
    from slater.policy import Mixture, load
    from slater.policy.onnx_file import OPSET, lone, save_onnx

    options = parse(Options, args, "export")
    if options.onnx.is_dir():
        raise InputError(f"{options.onnx} is a folder; name the file to write, for example policy.onnx.")
    if not options.onnx.parent.is_dir():
        raise InputError(f"there is no folder {options.onnx.parent} for {options.onnx.name}; make it first.")
    contract: dict[str, Any] = {}
    path = options.policy
    if path.is_dir():
        saved = open_run(path)
        contract = {
            "algorithm": saved.run.algorithm,
            "limits": list(saved.run.limit_texts),
            "data_fingerprint": saved.run.fingerprint,
            "estimates": saved.result.sums(),
            "limit_status": dict(saved.result.limit_status),
        }
        path = path / "mixture.safetensors"
    policy = lone(load(path))
    if (promise := getattr(policy, "contract", None)) is not None:
        contract["contract"] = promise.to_json()
    contract |= _verdict(path)
    save_onnx(policy, options.onnx, contract=contract)
    print(f"written: {options.onnx} (ONNX, opset {OPSET})")
    if isinstance(policy, Mixture) and len(policy.members) > 1:
        print(
            f"It is a mixture of {len(policy.members)} policies: draw `member` once per episode, with the "
            "weights in the file's metadata."
        )
    if hasattr(policy, "budget"):
        print("It keeps a budget: feed `left_out` and `time_out` back, and what each step cost as `costs`.")
    return 0


def _verdict(policy: Path) -> dict[str, Any]:
    """What `slater certify` said about the policy in this file, if it was asked about this one."""
    path = policy.parent / "certificate.json"
    if not path.exists():
        return {}
    found = read_json(path, "a certificate")
    if found.get("digest") != digest_of(policy):
        print(
            f"slater: warning: {path} is of another policy than {policy}, or of what it was before; "
            "its verdict is left out: certify the policy that is exported.",
            file=sys.stderr,
        )
        return {}
    return {"verdict": {name: found.get(name) for name in ("verdict", "sentence", "confidence")}}
