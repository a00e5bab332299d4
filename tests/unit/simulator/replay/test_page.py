"""The HTML page: well formed, self-contained, and with a plot of what was measured."""

import re
from xml.etree import ElementTree

from router.simulator.replay.compare import SeedResult
from router.simulator.replay.figures import Measured, figures
from router.simulator.replay.page import page


def seed(**measured: Measured) -> SeedResult:
    policies = {name: figures(each, 0) for name, each in measured.items()}
    return SeedResult(4, 1, measured, policies, figures(Measured(), 0))


ONE = Measured(ttft_s=[0.05, 0.5, 50.0], prefilled=[1000, 500])
OTHER = Measured(ttft_s=[0.0, 0.2], prefilled=[0, 2000])


def drawings(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_the_page_loads_nothing_and_escapes_what_it_shows():
    html = page("a <b> & c", [seed(one=ONE)])
    assert "a &lt;b&gt; &amp; c" in html
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import", html)


def test_curves_rise_within_whole_decades():
    curve, _ = drawings(page("", [seed(one=ONE, other=OTHER)]))
    labels = [text.text for text in curve.iter("text")]
    assert [label for label in labels if label and label.endswith(" s")] == [
        "0.001 s", "0.01 s", "0.1 s", "1 s", "10 s", "100 s",
    ]  # fmt: skip
    lines = list(curve.iter("polyline"))
    assert len(lines) == 2
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        heights = [y for _, y in points]
        assert heights == sorted(heights, reverse=True)
        assert min(heights) >= 10
        assert max(heights) <= 270


def test_bars_are_as_high_as_what_each_replica_computed():
    _, bars = drawings(page("", [seed(one=ONE, other=OTHER)]))
    heights = [float(bar.attrib["height"]) for bar in bars.iter("rect")]
    assert heights == [130.0, 0.0, 65.0, 260.0]


def test_where_nothing_was_measured_the_page_says_so():
    html = page("", [seed(one=Measured(prefilled=[0]))])
    assert drawings(html) == []
    assert "No turn was answered." in html
    assert "Nothing was computed." in html


def test_plots_over_several_seeds_say_which_one_they_show():
    assert "(seed 4)" in page("", [seed(one=ONE), seed(one=ONE)])
    assert "(seed 4)" not in page("", [seed(one=ONE)])
