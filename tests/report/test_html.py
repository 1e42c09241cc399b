"""The HTML report in a real browser: no error, no request, figures that answer; readable without scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slater.experiments import figure2, table2
from slater.experiments.suite import Folder

from ..experiments.rows import make_row

pytest.importorskip("plotly", reason="needs Plotly: pip install 'slater-rl[report]'")


@pytest.fixture(scope="module")
def bullet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bullet")
    rows = [
        make_row(task, algorithm, preset, limit, seed)
        for task in ("BallCircle", "CarCircle")
        for algorithm, preset in (("pdca", None), ("pdca", "paper"), ("coptidice", None))
        for limit in ("10", "20", "40")
        for seed in range(2)
    ]
    table2.write(out, Folder("table2", rows, ["<script>alert(1)</script> is left out."]))
    return out / "report.html"


def open_and_listen(browser: Any, path: Path) -> tuple[list[str], list[str]]:
    """Console messages that are errors, and addresses asked for besides the file itself."""
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(path.as_uri())
    messages = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert path.as_uri() in asked  # the listener works
    return messages, [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))]


def visible(browser: Any, figure: int) -> list[str]:
    """Names of the traces that are drawn."""
    script = (
        "return document.querySelectorAll('.js-plotly-plot')[arguments[0]].data"
        ".filter(t => t.visible === true).map(t => t.name)"
    )
    names: list[str] = browser.execute_script(script, figure)
    return names


def test_report_opens_without_error_or_network_and_its_figures_answer(browser: Any, bullet: Path) -> None:
    errors, requests = open_and_listen(browser, bullet)
    assert errors == []
    assert requests == []
    plots = browser.find_elements("css selector", ".js-plotly-plot .main-svg")
    assert len(browser.find_elements("css selector", ".js-plotly-plot")) == 3
    assert plots
    assert all(plot.size["height"] > 0 for plot in plots[:1])
    assert set(visible(browser, 0)) == {"PDCA", "PDCA (paper)", "COptiDICE"}
    # all limits of one task at first; one limit of it by the menu
    assert len(visible(browser, 0)) == 9
    plane = browser.find_elements("css selector", ".js-plotly-plot")[0]
    browser.execute_script("arguments[0].scrollIntoView()", plane)
    plane.find_element("css selector", ".updatemenu-header").click()
    choices = plane.find_elements("css selector", ".updatemenu-dropdown-button")
    (limit20,) = [choice for choice in choices if choice.text == "CarCircle, limit 20"]
    limit20.click()
    assert sorted(visible(browser, 0)) == ["COptiDICE", "PDCA", "PDCA (paper)"]
    # hover: a box with the numbers of a point
    script = (
        "const p = document.querySelectorAll('.js-plotly-plot')[0];"
        "const k = p.data.findIndex(t => t.visible === true);"
        "Plotly.Fx.hover(p, [{curveNumber: k, pointNumber: 0}])"
    )
    browser.execute_script(script)
    assert "per episode" in plane.find_element("css selector", ".hoverlayer").text
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


def test_figure2_report_opens_too(browser: Any, tmp_path: Path) -> None:
    rows = [
        make_row(task, algorithm, None, limit, seed, source="own", horizon=1000)
        for task, limit in (("cartpole", "0.05/step"), ("quadruped", "0.01/step"))
        for algorithm in ("pdca", "coptidice")
        for seed in range(2)
    ]
    for row in rows:
        row["results"][0]["normalised_reward"] = None
    figure2.write(tmp_path, Folder("figure2", rows, []))
    errors, requests = open_and_listen(browser, tmp_path / "report.html")
    assert (errors, requests) == ([], [])
    assert set(visible(browser, 0)) == {"PDCA", "COptiDICE", "limit"}


def test_report_reads_without_scripts(bullet: Path) -> None:
    page = bullet.read_text()
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?:", page)
    plain = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert plain.count("<noscript><img") == 2
    for words in ("PDCA (paper)", "printed in the PDCA paper", "Data of BallCircle", "1,000 steps"):
        assert words in plain
    # what came from a run is text, never markup
    assert "<script>alert" not in page
