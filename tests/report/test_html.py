"""The HTML report of benchmarks: in a real browser no error and no request; readable without scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slater.experiments import figure2, table2
from slater.experiments.suite import Folder

from ..experiments.rows import make_row


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


def test_report_opens_without_error_or_network(browser: Any, bullet: Path) -> None:
    assert open_and_listen(browser, bullet) == ([], [])
    sizes = browser.execute_script("return [...document.images].map(image => image.naturalHeight)")
    assert len(sizes) == 4
    assert all(size > 0 for size in sizes)


def test_figure2_report_has_its_picture_and_its_table(tmp_path: Path) -> None:
    rows = [
        make_row(task, algorithm, None, limit, seed, source="own", horizon=1000)
        for task, limit in (("cartpole", "0.05/step"), ("quadruped", "0.01/step"))
        for algorithm in ("pdca", "coptidice")
        for seed in range(2)
    ]
    for row in rows:
        row["results"][0]["normalised_reward"] = None
    figure2.write(tmp_path, Folder("figure2", rows, []))
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 1
    for words in ("While training", "COptiDICE", "PDCA outperforms COptiDICE", "8 commands"):
        assert words in page


def test_report_reads_without_scripts(bullet: Path) -> None:
    page = bullet.read_text()
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?:", page)
    assert "<script" not in page
    assert page.count('src="data:image/svg+xml;base64,') == 4  # the plane, and curves at three limits
    for words in ("PDCA (paper)", "printed in the PDCA paper", "Data of BallCircle", "1,000 steps"):
        assert words in page
    # what came from a run is text, never markup
    assert "<script>alert" not in page
