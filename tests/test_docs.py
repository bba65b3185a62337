"""The guide is true where a program can tell: links, command lines, flags, messages, pages."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from octavo.cli.main import build_parser
from octavo.cli.parser import Parser
from octavo.reproduce.claims import CLAIMS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
# Experiments: the log may name what was tried and not kept.
TOLD_OF_THE_PAST = {DOCS / "LOG.md"}
# Flags of other programs that the text mentions alone, without their command line.
FOREIGN_FLAGS = {"--no-deps", "--strict"}
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
OCTAVO = re.compile(
    r"(?:^|&&|[;|(=])\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:[\w./-]*bin/)?octavo(?=\s)(.*)", re.MULTILINE)
SOURCES = ("octavo/", "csrc/", "tests/", "tools/", "benchmarks/", "docs/")
END_OF_COMMAND = {"|", ">", ">>", "&", "&&", ";", "2>", "<"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(text: str) -> str:
    return FENCE.sub("", text)


def code(text: str) -> Iterator[str]:
    """Fenced blocks meant for a shell, and spans; a command over several lines as one."""
    for language, block in FENCE.findall(text):
        if language in ("", "sh", "bash", "console", "ini"):
            yield re.sub(r"\\\n\s*", " ", block)
    for span in SPAN.findall(prose(text)):
        yield " ".join(span.split()).replace(r"\|", "|")


def commands(text: str) -> Iterator[list[str]]:
    """The words behind `octavo`, up to what the shell takes for itself."""
    for piece in code(text):
        for found in OCTAVO.finditer(piece):
            lexer = shlex.shlex(found[1], posix=True, punctuation_chars="&;<>")
            lexer.whitespace_split, lexer.commenters = True, "#"
            words = []
            for word in lexer:
                if word in END_OF_COMMAND or set(word) <= set("&;<>|"):
                    break
                words.append(word)
            if words:
                yield words


def faults(words: list[str]) -> Iterator[str]:
    """What of a command line the CLI does not know."""
    parser: Parser = build_parser()
    words = [word for word in words if word != "..."]
    while (choices := parser.commands()) and words and not words[0].startswith("-"):
        for word in words[0].split("|")[1:]:
            if word not in choices:
                yield f"no command {word!r}"
        first, *words = words[0].split("|")[0], *words[1:]
        if first not in choices:
            yield f"no command {first!r} of {parser.prog}"
            return
        parser = choices[first]
    known = {flag for action in parser._actions for flag in action.option_strings}
    for word in words:
        flag = word.strip("[]").split("=")[0]
        if re.fullmatch(r"--?[a-zA-Z][\w-]*", flag) and flag not in known:
            yield f"{parser.prog} has no {flag}"
    if parser.prog == "octavo reproduce":  # whose `report` is all of the claims
        names = [word for word in words[:1] if re.fullmatch("[a-z]+", word)]
        yield from (f"no claim {name!r}" for name in names if name not in {*CLAIMS, "report"})


@cache
def all_flags() -> frozenset[str]:
    found: set[str] = set()
    parsers = [build_parser()]
    while parsers:
        parser = parsers.pop()
        found.update(flag for action in parser._actions for flag in action.option_strings)
        parsers.extend(parser.commands().values())
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [t for t in LINK.findall(prose(page.read_text())) if "://" not in t]
    missing = [t for t in targets if (path := t.split("#")[0])
               and not (page.parent / path).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_command_lines_are_known(page: Path) -> None:
    assert [f"octavo {' '.join(words)}: {fault}" for words in commands(page.read_text())
            for fault in faults(words)] == []


@pytest.mark.parametrize("page", [p for p in PAGES if p not in TOLD_OF_THE_PAST], ids=name_of)
def test_flags_are_known(page: Path) -> None:
    flags = {found for span in SPAN.findall(prose(page.read_text()))
             if (found := re.split(r"[ =]", span)[0]).startswith("--")} - {"---"}
    assert flags - all_flags() - FOREIGN_FLAGS == set()


@pytest.mark.parametrize("page", [p for p in PAGES if p not in TOLD_OF_THE_PAST], ids=name_of)
def test_files_named_in_the_text_exist(page: Path) -> None:
    text = page.read_text()
    made = set(re.findall(r'^```\w+ title="([^"]+)"', text, re.MULTILINE))  # by the page's reader
    named = {span for span in SPAN.findall(prose(text))
             if span.startswith(SOURCES) and re.fullmatch(r"[\w./*-]+", span)}
    assert [name for name in sorted(named - made) if not list(ROOT.glob(name))] == []


def test_metrics_named_in_the_text_are_documented() -> None:
    known = set(re.findall(r"^\| `(\w+)`", (DOCS / "METRICS.md").read_text(), re.MULTILINE))
    ends = ("", "_bucket", "_sum", "_count")
    for page in set(PAGES) - TOLD_OF_THE_PAST:
        named = set(re.findall(r"`octavo:(\w+)`", page.read_text()))
        wrong = {n for n in named if not any(n.removesuffix(end) in known for end in ends)}
        assert wrong == set(), page


def test_make_targets_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for piece in code(page.read_text())
             for target in re.findall(r"(?:^|\s)make ([a-z-]+)", piece)}
    assert {"serve", "test"} <= named <= targets


def test_the_checks_can_fail() -> None:
    def found(line: str) -> list[str]:
        return [fault for words in commands(f"```sh\n{line}\n```\n") for fault in faults(words)]

    assert found("octavo serve model --port 1 --no-page  # a comment") == []
    assert found("octavo bench engine -p 8 && octavo reproduce paged --quick") == []
    assert found("octavo serve model \\\n  --prot 1") == ["octavo serve has no --prot"]
    assert found("octavo bench nothing") == ["no command 'nothing' of octavo bench"]
    assert found("cd x && octavo reproduce nothing") == ["no claim 'nothing'"]
    assert found("octavo sreve") == ["no command 'sreve' of octavo"]


@cache
def texts_of_the_code() -> str:
    """Every text the package can say, a line each, {} for what is filled in."""
    found = []
    for path in sorted((ROOT / "octavo").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(text.replace("\n", " ") for text in found)


def said(message: str) -> bool:
    return re.sub(r"\{[^}]*\}", "{}", message.strip()) in texts_of_the_code()


def test_messages_are_said_by_the_code() -> None:
    text = (DOCS / "faq.md").read_text()
    messages = [block for language, block in FENCE.findall(text) if language == "message"]
    assert len(messages) >= 30
    assert [message for message in messages if not said(message)] == []
    assert not said("port {port} on {host} is taken")


def test_codes_and_statuses_are_those_of_the_errors() -> None:
    table = re.findall(r"^\| (\d{3}) \| ([^|]*) \|", (DOCS / "faq.md").read_text(), re.MULTILINE)
    told = {code for _, codes in table for code in SPAN.findall(codes)}
    assert told and all(said(code) for code in told)


def test_every_page_is_in_the_contents() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    contents = config[config.index("\nnav:"):]
    named = set(re.findall(r"[\w/-]+\.md", contents))
    excluded = set(re.findall(r"^  (\S+\.md)$", config, re.MULTILINE))
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} == named | excluded


class Loads(HTMLParser):
    """Addresses that a browser loads by itself when it shows the page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("rel") not in ("canonical", "alternate"):
            self.found.append(values.get("href") or "")
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "object"):
            self.found.append(values.get("src") or values.get("data") or "")
        self.found.append(values.get("srcset") or "")
        self.found.extend(re.findall(r"url\(([^)]*)\)", values.get("style") or ""))


def elsewhere(address: str) -> bool:
    return re.match(r"(https?:)?//", address.strip(" '\"")) is not None


@pytest.mark.full
def test_the_guide_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for module in ("mkdocs", "material"):
        pytest.importorskip(module, reason="the guide needs: pip install -e '.[docs]'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages, styles = sorted(tmp_path.rglob("*.html")), sorted(tmp_path.rglob("*.css"))
    assert len(pages) >= len(PAGES) - 2 and styles
    foreign = []
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert any(load.endswith(".js") for load in loads.found), page
        foreign += [(page.name, load) for load in loads.found if elsewhere(load)]
    for style in styles:
        text = style.read_text()
        addresses = re.findall(r"url\(([^)]*)\)|@import\s+([^;]+);", text)
        foreign += [(style.name, a or b) for a, b in addresses if elsewhere(a or b)]
    assert foreign == []
