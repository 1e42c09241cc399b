"""`slater.plot` and the short forms of what Python returns: a line, and a small table in a notebook."""

from xml.etree import ElementTree

import numpy as np
import pytest

import slater
from slater.certify.frontier import Candidate, Pool, trace
from slater.certify.verdict import Certificate, LimitVerdict
from slater.runs import open_run

from .data.make import walk
from .runs.example import write_run


def shapes(picture) -> int:
    """How many points a page draws; every picture on it is whole."""
    parts = picture.page.split("<svg")[1:]
    drawn = [ElementTree.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>") for part in parts]
    assert drawn
    return sum(len([item for item in svg.iter() if item.tag.endswith("circle")]) for svg in drawn)


def test_a_log_is_drawn_episode_by_episode(tmp_path):
    data = walk(episodes=12, costs=("wear", "<heat>"))
    picture = slater.plot(data, limits={"wear": 2, "<heat>": "0.1/step"})
    assert shapes(picture) == 24
    assert "&lt;heat&gt;" in picture.page
    assert "<heat>" not in picture.page
    assert picture.save(tmp_path / "a.html").read_text() == picture.page
    assert repr(picture).startswith("<Picture: Dataset of ")
    assert picture._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html')
    with pytest.raises(slater.InputError, match="No limit for the cost"):
        slater.plot(data, limits={"wear": 2})


def test_a_run_and_its_result_are_drawn(tmp_path):
    folder = write_run(tmp_path / "run")
    saved = open_run(folder)
    for what in (saved.result, saved, folder, str(folder)):
        assert shapes(slater.plot(what)) >= 2
    with pytest.raises(slater.InputError, match="a run has its own"):
        slater.plot(folder, limits=3)
    assert repr(saved).startswith(f"<Run in {folder}: Result of pdca")
    assert "within" in saved._repr_html_()


def test_a_frontier_is_drawn():
    candidates = tuple(Candidate(f"p{k}", float(k), (float(k),)) for k in range(4))
    assert shapes(slater.plot(trace(Pool(("cost",), candidates)))) > 0


def test_a_certificate_is_drawn_and_says_itself_in_a_line():
    limit = LimitVerdict("wear & tear", 3, "per episode", "pass", 2.0, 1.5, 2.5, "rollouts", "bounded")
    certificate = Certificate("runs/a", 0.95, (limit,))
    assert "Within limits" in slater.plot(certificate).page
    assert repr(certificate).startswith("<Certificate of runs/a: PASS. Within limits: with 95% confidence")
    assert "<td>wear &amp; tear</td>" in certificate._repr_html_()


def test_other_things_are_refused():
    for other in (3, None, np.zeros(3)):
        with pytest.raises(slater.InputError, match="plot draws a dataset"):
            slater.plot(other)
