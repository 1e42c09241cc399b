"""Pages of a certificate and of a frontier are whole, parse, and need nothing from elsewhere."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np

from slater.certify.frontier import Candidate, Pool, trace
from slater.certify.rollouts import judge_episodes
from slater.certify.verdict import Certificate, Gate
from slater.report.certificate import certificate_html
from slater.report.frontier import draw_frontier, frontier_html


def _pictures(page: str) -> list[ET.Element]:
    assert "http" not in page
    assert "<script" not in page
    parts = page.split("<svg")[1:]
    return [ET.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in parts]


def test_a_certificate_page_has_its_sentence_and_one_picture_of_evidence_per_limit() -> None:
    costs = np.random.default_rng(0).binomial(20, 0.3, (50, 2)).astype(float)
    gates = [Gate("range <b>", True, "known & small.")]
    verdicts = judge_episodes(costs, ["energy", "speed <km/h>"], [8.0, 2.0], [20.0, 20.0], 0.05, gates=gates)
    details = {"episode_costs": costs.tolist()}
    certificate = Certificate("runs/a", 0.95, verdicts, 1, "50 episodes.", ("one.",), details)
    page = certificate_html(certificate)
    pictures = _pictures(page)
    assert len(pictures) == 4  # two limits with evidence and histogram
    assert "speed &lt;km/h&gt;" in page
    assert "Do not deploy" in page
    assert {g.tag for g in pictures[0]} >= {"line", "text", "g"}


def test_a_frontier_page_says_the_price_of_every_point(tmp_path: Path) -> None:
    for costs in (1, 2):
        rng = np.random.default_rng(costs)
        candidates = [
            Candidate(f"run {k}", float(r), tuple(rng.uniform(0, 40, costs)))
            for k, r in enumerate(rng.uniform(0, 100, 8))
        ]
        frontier = trace(Pool(("a", "b")[:costs], tuple(candidates)), resolution=5)
        picture = _pictures(frontier_html(frontier))[0]
        titles = [t.text or "" for t in picture.iter("title")]
        assert sum("one more unit is worth" in t for t in titles) == sum(p.within for p in frontier.points)
        draw_frontier(tmp_path / f"{costs}.png", frontier)
        assert (tmp_path / f"{costs}.png").read_bytes().startswith(b"\x89PNG")


def test_a_map_of_two_limits_marks_the_log_the_policies_and_every_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    candidates = [
        Candidate(f"run {k}", r, tuple(rng.uniform(0, 40, 2)))
        for k, r in enumerate(rng.uniform(0, 9, 6).tolist())
    ]
    frontier = replace(
        trace(Pool(("a", "b"), tuple(candidates)), [[0.0, 10.0, 50.0], [25.0]]),  # one limit of b alone
        episodes=tuple(tuple(row) for row in rng.uniform(20, 30, (30, 3)).tolist()),
        sources={"careful": (5.0, 20.0, 25.0)}, marked=((10.0, 25.0), (20.0, 25.0)),
    )  # fmt: skip
    titles = [t.text or "" for t in _pictures(frontier_html(frontier))[0].iter("title")]
    assert sum("an episode of the log" in t for t in titles) > 0
    assert "careful: 5, 20, 25" in titles
    assert sum("limits of a run" in t for t in titles) == 2
    draw_frontier(tmp_path / "map.png", frontier)
    assert (tmp_path / "map.png").stat().st_size > 5000
