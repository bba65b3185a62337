"""`report`: one page with everything, that needs nothing else."""

import json
import re
from pathlib import Path

import pytest

from octavo.bench.plot import Bars
from octavo.cli import reproduce as command
from octavo.cli.main import main
from octavo.errors import ConfigError
from octavo.reproduce import claims
from octavo.reproduce.claim import Claim, Options, Progress
from octavo.reproduce.finding import Figure, Finding, Table
from octavo.reproduce.report import html_report


def finding(name: str, value: float) -> Finding:
    return Finding(
        name=name, title="a <title>", claimed="They say & claim.", source="Them, 2020",
        figures=[Figure("speed", value, "x", 2.0)], explanation="Because.",
        tables=[Table("a table", ["arm", "tok/s"], [["one", 1.5], ["<two>", None]])],
        diagrams=[Bars("bars", "tok/s", ["a"], [("s", [1.0])])], facts={"threads": 2})


def test_the_page_has_everything_and_loads_nothing() -> None:
    text = html_report([finding("one", 2.5), finding("two", 1.5)], [("three", "no <model>")])
    assert text.count("<svg") == text.count("</svg>") == 2
    assert text.count(">reached<") == 1 and text.count(">not reached<") == 1
    assert "They say &amp; claim." in text and "&lt;two&gt;" in text and "no &lt;model&gt;" in text
    assert "<script" not in text and not re.search(r"src=|href='[^#]", text)


def test_the_command_goes_on_behind_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    def fails(options: Options, progress: Progress) -> Finding:
        raise ConfigError("it cannot be")

    def works(options: Options, progress: Progress) -> Finding:
        assert options.url is None
        return finding("good", 3.0)

    monkeypatch.setattr(claims, "CLAIMS", {
        "bad": Claim("bad", "", fails, takes=("url",)), "good": Claim("good", "", works)})
    arguments = ["reproduce", command._REPORT, "--out", str(tmp_path)]
    assert main([*arguments, "--url", "http://x"]) == 1
    text = (tmp_path / "report.html").read_text()
    assert "not measured: it cannot be" in text and "id='good'" in text
    assert json.loads((tmp_path / "good.json").read_text())["is_reached"]
    assert "bad: not measured: it cannot be" in capsys.readouterr().err

    def refuses(options: Options) -> None:
        raise ConfigError(f"url is {options.url!r}: nobody is there", param="url")

    claims.CLAIMS["last"] = Claim("last", "", fails, takes=("url",), check_input=refuses)
    (tmp_path / "good.json").unlink()
    assert main([*arguments, "--url", "http://x"]) == 1
    printed = capsys.readouterr()  # nothing is measured before
    assert "--url is 'http://x': nobody is there" in printed.err and printed.out == ""
    assert not (tmp_path / "good.json").exists()
    assert main([*arguments, "--trace", "x.csv"]) == 1
    assert "no claim has a use for it" in capsys.readouterr().err
