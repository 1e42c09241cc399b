"""Candidates of `slater tune` as cells: trained on one part of the episodes, judged on the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slater.errors import InputError
from slater.experiments.benchmark import share_done, train_or_resume
from slater.jobs.engines import Cell, Row, key_of


@dataclass(frozen=True)
class CandidateWork:
    """The work of a candidate, as worker processes get it.

    path: of the dataset; out: the output folder; reading: as `slater.data.ReadOptions.to_json` gives it.
    A cell has algorithm, preset, settings, limits, seed, data (fingerprint), held_out, split_seed and
    judge (fields of `slater.tuning.search.Judge`).
    """

    path: str
    out: str
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, cell: Cell) -> Row:
        """Train or resume, then estimate; a row with `estimate`, or with `failed`, a sentence."""
        from slater.data import ReadOptions, load
        from slater.data.download import locate
        from slater.deep import DivergedError
        from slater.tuning.search import Judge, split_episodes

        begun = time.time()
        try:
            dataset = load(locate(self.path), ReadOptions.from_json(self.reading))
            if dataset.fingerprint != cell["data"]:
                raise InputError(f"{self.path} changed while the candidates ran: its fingerprint differs.")
            kept, held = split_episodes(dataset, cell["held_out"], cell["split_seed"])
            folder = self.run_folder(cell)
            options = {"data": f"a part of {self.path}", "reading": dict(self.reading)}
            train_or_resume(cell, kept, cell["limits"], folder, options)
            estimate = Judge(**cell["judge"])(folder, kept, held)
        except (InputError, DivergedError) as error:
            return {"failed": str(error)}
        return {"estimate": estimate, "seconds": round(time.time() - begun, 1)}

    def run_folder(self, cell: Cell) -> Path:
        """The folder of the candidate's run."""
        searched = "-".join(f"{name}={cell['settings'][name]}" for name in cell["searched"])
        return Path(self.out) / "runs" / f"{searched}-{key_of(cell)}"

    def progress(self, cell: Cell) -> float:
        """How much of the candidate's training is done, from 0 to 1."""
        return share_done(self.run_folder(cell), cell["steps"])
