"""The picture of what Locust measured."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtest.plot import main

HEAD = "Type,Name,Request Count,Failure Count,50%,90%,99%\n"


def written(folder: Path, text: str) -> str:
    (folder / "run_stats.csv").write_text(text)
    return str(folder / "run")


def test_the_picture_shows_each_kind_of_turn_in_order(tmp_path: Path) -> None:
    prefix = written(
        tmp_path,
        HEAD
        + "TTFT,agent turns 6-20,3,0,50,90,99\n"
        + "TTFT,agent turn 1,12,0,400,900,2000\n"
        + "TTFT,agent turns 61+,1,0,7,8,9\n"
        + "TTFT,agent turns 2-5,2,0,7,8,9\n"
        + "turn,agent turn 1,12,0,1,1,1\n"
        + ",Aggregated,99,0,1,1,1\n",
    )
    assert main([prefix]) == 0
    drawn = ElementTree.parse(tmp_path / "run.svg").getroot()
    texts = [element.text or "" for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text.startswith("agent")] == [
        "agent turn 1",
        "agent turns 2-5",
        "agent turns 6-20",
        "agent turns 61+",
    ]
    assert "12 turns" in texts
    bars = list(drawn.iter("{http://www.w3.org/2000/svg}rect"))
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert len(bars) == 12
    assert heights[0] < heights[1] < heights[2]
    assert min(heights) > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "turn,agent turn 1,12,0,1,1,1\n", "no turn got a first token"),
        ("Type,Name\nTTFT,x\n", "line 2 is none of Locust's"),
        (HEAD + "TTFT,agent turn 1,12,0,N/A,1,1\n", "line 2 is none of Locust's"),
    ],
)
def test_what_cannot_be_drawn_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    assert main([written(tmp_path, text)]) == 1
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 1
    assert "none_stats.csv: No such file" in capsys.readouterr().err
