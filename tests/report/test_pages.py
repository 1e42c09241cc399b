"""Pages of certificates and frontiers: what is bright, what is one bin, what fits a phone, what is kept."""

from __future__ import annotations

import re

import numpy as np
import pytest

from slater.certify.bounds import Interval
from slater.certify.frontier import Candidate, Pool, trace
from slater.certify.verdict import Certificate, Evidence, LimitVerdict
from slater.report.certificate import bins_of, certificate_html, earlier, save_certificate
from slater.report.frontier import OUT_OF_REACH, frontier_html
from slater.report.pages import table

WIDE = 390


def _brightness(colour: str) -> float:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _certificate(limit: float = 20.0, costs: int = 2) -> Certificate:
    found = Interval(12.345, 10.1234, 17.891)
    limits = tuple(
        LimitVerdict.of(
            f"a cost with a long name {i}", limit, found, "rollouts", evidence=[Evidence("episodes", *found)],
            share_over=0.1,
        )
        for i in range(costs)
    )  # fmt: skip
    episodes = np.random.default_rng(0).poisson(12, (80, costs)).tolist()
    return Certificate(
        "runs/first", 0.95, limits, evidence_from="80 episodes.", details={"episode_costs": episodes}
    )


def test_counts_have_bins_of_one_and_numbers_do_not():
    edges = bins_of([0, 3, 3, 7])
    assert edges.tolist() == [k - 0.5 for k in range(9)]
    counts, _ = np.histogram([0, 3, 3, 7], edges)
    assert counts.tolist() == [1, 0, 0, 2, 0, 0, 0, 1]
    many = bins_of([0.0, 999.0])
    assert len(many) <= 62
    assert set(np.diff(many)) == {17.0}  # whole numbers still, no cost on an edge
    assert many[0] < 0 < 999 < many[-1]
    assert len(bins_of([0.5, 1.25, 3.0])) == 6
    assert bins_of([4.0]).tolist() == [3.5, 4.5]


def test_a_map_is_bright_where_reward_is_high_and_has_a_scale_and_a_key():
    rng = np.random.default_rng(0)
    costs = rng.uniform(0, 50, (12, 2))
    candidates = tuple(Candidate(f"p{k}", float(c.sum()), tuple(c)) for k, c in enumerate(costs))
    frontier = trace(Pool(("energy", "wear"), candidates), marked=[(20.0, 20.0)])
    page = frontier_html(frontier)
    cells = re.findall(r"<title>([^<]*)</title><rect [^>]*fill=\"(#\w+)\"", page)
    found = sorted(
        (float(match.group(1)), _brightness(colour))
        for words, colour in cells
        if (match := re.search(r"reward ([-\d.]+)", words))
    )
    assert len(found) > 20
    rewards, brightness = np.array(found).T
    assert (np.diff(brightness)[np.diff(rewards) > 0.01 * np.ptp(rewards)] > 0).all()
    assert {colour for words, colour in cells if "out of reach" in words} <= {OUT_OF_REACH}
    assert _brightness(OUT_OF_REACH) < brightness.min()
    for part in ("class='scale'", "limits of the run", "a policy of the runs", "out of reach"):
        assert part in page, part
    assert page.count("<tr>") <= 11


def test_earlier_certificates_are_kept(tmp_path):
    for limit in (15.0, 10.0, 20.0):
        save_certificate(tmp_path, _certificate(limit))
    assert [row["verdict"] for row in earlier(tmp_path)] == ["fail", "abstain"]
    assert all(row["made"] and "details" not in row for row in earlier(tmp_path))
    assert "Within limits: " in (tmp_path / "certificate.html").read_text()
    assert earlier(tmp_path / "elsewhere") == []


def test_cells_that_say_a_verdict_have_its_colour():
    text = table(("cost", "what"), [("a <b>", "12.3, above"), ("c", "pass")])
    assert "<td data-name='what' class='fail'>12.3, above</td>" in text
    assert "class='pass'>pass<" in text
    assert "a &lt;b&gt;" in text


@pytest.mark.parametrize("costs", [1, 2])
def test_a_certificate_fits_a_phone_with_its_verdict_in_sight(costs, tmp_path, browser):
    file = tmp_path / "page.html"
    file.write_text(certificate_html(_certificate(10.0, costs)))
    size = {"width": WIDE, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(f"file://{file}")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= WIDE
        edges = browser.execute_script(
            "return [...document.querySelectorAll('td.fail')].map(x => x.getBoundingClientRect())"
            ".map(x => [x.left, x.right, x.width])"
        )
        assert len(edges) == costs
        assert all(left >= 0 and right <= WIDE and width > 0 for left, right, width in edges)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_table_whose_words_do_not_fit_a_phone_is_a_card_per_row():
    header = ("cost", "as given", "per episode", "per step", "discounted sum")
    assert "class='cards'" in table(header, [("stockouts", "waste=10/week@1d", "20", "1.429", "142.9")])
    assert "class='cards'" not in table(header[:3], [("stockouts", "waste=10/week@1d", "20")])
