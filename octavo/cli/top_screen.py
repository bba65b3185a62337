"""Frames of `octavo top`: a TopView -> lines of text with colours, for any size of screen. Pure.

Every line fits the width, and there are at most as many as the height. Each request has one colour
and, for screens without colours, one letter.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from octavo.cli.top_view import TopView

# of requests, by slot: far apart, and readable behind black letters
_COLOURS = ("#8dd3c7", "#fdb462", "#80b1d3", "#fb8072", "#b3de69", "#bc80bd", "#ffed6f", "#fccde5",
            "#66c2a5", "#fc8d62", "#a6cee3", "#e5c494")
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TITLE = "bold"
_DIM = "dim"
# a wide screen shows these side by side: their shares
_LEFT_SHARE = 0.62
_MIN_SPLIT_WIDTH = 60
_MIN_WORDY_WIDTH = 96  # words of the head are shorter below
_MIN_PROMPT_CELLS = 8  # of a step's bar, however many requests decode in it
# characters of the block map, by rising use
_MAP_ORDER = ".c123456789+"
_MAP_STYLES = {".": "dim", "c": "cyan", "1": "green", "+": "bold bright_red"}
_SHARED_STYLE = "bold yellow"
_BAR_STYLE = _COLOURS[2]

Lines = list[Text]


def screen(view: TopView, width: int, height: int, *, ascii_only: bool = False) -> Lines:
    """One frame: the lines of all parts, from the top."""
    width, height = max(width, 1), max(height, 1)
    lines = _head(view, width)
    if view.state is None:
        lines.append(Text("waiting for the first snapshot ..." if view.problem is None else ""))
        return _cut(lines, width, height)
    rest = height - len(lines)
    # a third for the batches, a quarter for blocks and times, the rest for requests and tree
    num_batches = max(rest // 3, 2)
    num_blocks = max(rest // 4, 3)
    lines += _batches(view, width, num_batches, ascii_only=ascii_only)
    lines += _beside(width, num_blocks, lambda w, h: _blocks(view, w, h),
                     lambda w, h: _times(view, w, h, ascii_only=ascii_only))
    rest = height - len(lines)
    if rest > 1:
        lines += _beside(width, rest, lambda w, h: _requests(view, w, h),
                         lambda w, h: _tree(view, w, h, ascii_only=ascii_only))
    return _cut(lines, width, height)


def _cut(lines: Lines, width: int, height: int) -> Lines:
    for line in lines:
        line.truncate(width)
        line.no_wrap = True
    return lines[:height]


def _beside(width: int, height: int, left: Callable[[int, int], Lines],
            right: Callable[[int, int], Lines]) -> Lines:
    """Two parts side by side, or on a narrow screen the left one."""
    if width < _MIN_SPLIT_WIDTH:
        return left(width, height)[:height]
    left_width = int(width * _LEFT_SHARE)
    lines = left(left_width, height)[:height]
    others = right(width - left_width - 2, height)[:height]
    found = []
    for i in range(max(len(lines), len(others))):
        line = lines[i] if i < len(lines) else Text()
        line.truncate(left_width)
        line.pad_right(left_width + 2 - line.cell_len)
        if i < len(others):
            line.append_text(others[i])
        found.append(line)
    return found


def _colour(slot: int) -> str:
    return _COLOURS[slot % len(_COLOURS)]


def _letter(slot: int) -> str:
    return _LETTERS[slot % len(_LETTERS)]


def _head(view: TopView, width: int) -> Lines:
    first = Text().append("octavo top", _TITLE)
    if view.hello is not None:
        hello = view.hello
        threads = "1 thread" if hello["threads"] == 1 else f"{hello['threads']} threads"
        first.append(f"  {hello['model']}  {hello['backend']}, {threads}  {view.url}")
    if view.problem is not None:
        first = Text(f"{view.problem}; trying again", style="bold red")
    running, waiting = view.counts()
    prompt, output = view.rates()
    limit = view.hello["max_num_seqs"] if view.hello else "?"
    wordy = width >= _MIN_WORDY_WIDTH
    second = Text.assemble(
        ("running " if wordy else "run ", _DIM), f"{running}/{limit}",
        ("  waiting " if wordy else "  wait ", _DIM), str(waiting),
        ("  tok/s ", _DIM), f"{output:.0f}", (" out ", _DIM), f"{prompt:.0f}", (" in", _DIM))
    hit_rate = view.hit_rate()
    if hit_rate is not None:
        second.append("  hits ", _DIM).append(f"{100 * hit_rate:.0f} %")
    if view.state is not None:
        totals = view.state["totals"]
        second.append("  preempted ", _DIM).append(str(totals["preemptions"]))
        second.append("  finished " if wordy else "  done ", _DIM).append(str(totals["finished"]))
    return [first, second]


def _batches(view: TopView, width: int, height: int, *, ascii_only: bool) -> Lines:
    """The last steps, one a line: a letter for each output token, and for one or several prompt
    tokens a mark."""
    steps = list(view.steps)[-(height - 1):]
    bar_width = width - 24
    per_cell = 1
    sizes = []
    for step in steps:
        prompt, output = (sum(row[i] for row in step["reqs"]) for i in (1, 2))
        sizes.append(prompt + output)
        per_cell = max(per_cell, -(-prompt // max(bar_width - output, _MIN_PROMPT_CELLS)))
    each = "a prompt token" if per_cell == 1 else f"{per_cell} prompt tokens"
    mark = "%" if ascii_only else "▒"
    lines = [_title(width, "batch of each step", f"letter = request, {mark} = {each}")]
    for step, size in zip(steps, sizes):
        line = Text().append(f"{step['n']:>7} {1000 * step['dt']:6.1f} ms {size:>4}  ", _DIM)
        line.append_text(_bar(step, per_cell, mark))
        lines.append(line)
    return lines + [Text() for _ in range(height - len(lines))]


def _bar(step: dict[str, Any], per_cell: int, mark: str) -> Text:
    """A prompt begins with its request's letter; one that begins in the cell of another has
    none."""
    bar = Text()
    done = cells = 0
    for slot, prompt, output in step["reqs"]:
        done += prompt
        count = -(-done // per_cell) - cells
        cells += count
        letters = output + (count > 0)
        bar.append(_letter(slot) * letters, f"black on {_colour(slot)}")
        bar.append(mark * (count - 1), _colour(slot))
    return bar


def _blocks(view: TopView, width: int, height: int) -> Lines:
    assert view.state is not None
    blocks = view.state["blocks"]
    used = blocks["total"] - blocks["free"]
    share = 100 * used / blocks["total"] if blocks["total"] else 0.0
    # blocks are taken in the order of their numbers at first: those behind have never been used
    room = width * (height - 1)
    refs = blocks["refs"][: max(len(blocks["refs"].rstrip(".")), room)]
    chars, per_char = _condensed(refs, room)
    per_char *= blocks["per_char"]
    each = "" if per_char == 1 else f", {per_char} a letter"
    rest = "" if len(refs) == len(blocks["refs"]) else ", the rest is free"
    held = f"{used}/{blocks['total']} held ({share:.0f} %)"
    cached = f"{held}, {blocks['cached']} cached"
    lines = [_title(width, "KV blocks", f"{cached}{each}{rest}", f"{cached}{each}",
                    f"{held}{each}", held)]
    for start in range(0, len(chars), width):
        line = Text()
        for char in chars[start : start + width]:
            line.append(char, _MAP_STYLES.get(char, _SHARED_STYLE))
        lines.append(line)
    return lines


def _condensed(refs: str, max_chars: int) -> tuple[str, int]:
    """(at most so many letters; how many of refs each stands for: the highest is shown)."""
    per_char = max(1, -(-len(refs) // max(max_chars, 1)))
    if per_char == 1:
        return refs, 1
    return "".join(max(refs[i : i + per_char], key=_MAP_ORDER.find)
                   for i in range(0, len(refs), per_char)), per_char


def _times(view: TopView, width: int, height: int, *, ascii_only: bool) -> Lines:
    median = view.median_step_s()
    lines = [_title(width, "step time",
                    "" if median is None else f"median {1000 * median:.1f} ms")]
    found = view.histogram()
    if len(found) > height - 1:  # those with the most steps, in order
        least = sorted((count for _, count in found), reverse=True)[: height - 1]
        kept = []
        for label, count in found:
            if count in least:
                least.remove(count)
                kept.append((label, count))
        found = kept
    most = max((count for _, count in found), default=1)
    for label, count in found:
        bar = round((width - 17) * count / most) if width > 17 else 0
        line = Text().append(f"{label:>10} ", _DIM)
        line.append(("#" if ascii_only else "█") * max(bar, 1 if count else 0), _BAR_STYLE)
        line.append(f" {count}")
        lines.append(line)
    return lines


def _requests(view: TopView, width: int, height: int) -> Lines:
    assert view.state is not None
    requests = view.state["requests"]
    total = view.state["running"] + view.state["waiting"]
    shown = requests[: height - 1 if total <= height - 1 else height - 2]
    id_width = max(width - 40, 4)
    lines = [Text().append(
        f"  {_fit('request', id_width)} state  prompt cached   out  blk   age", _TITLE)]
    for request in shown:
        line = Text().append(_letter(request["slot"]), f"black on {_colour(request['slot'])}")
        line.append(f" {_fit(request['id'], id_width)} {request['state'][:7]:<7}"
                    f"{request['prompt_tokens']:>6}{request['cached_tokens']:>7}"
                    f"{request['output_tokens']:>6}{request['num_blocks']:>5}"
                    f"{_age(request['age_s']):>6}")
        lines.append(line)
    if not requests:
        lines.append(Text().append("no requests", _DIM))
    elif total > len(shown):
        lines.append(Text().append(f"and {total - len(shown)} more", _DIM))
    return lines


def _tree(view: TopView, width: int, height: int, *, ascii_only: bool) -> Lines:
    """The nodes that were used last, each below the one that it continues."""
    assert view.state is not None
    tree = view.state["tree"]
    nodes: Sequence[dict[str, Any]] = tree["nodes"]
    total = len(nodes) + tree["left_out"]
    lines = [_title(width, "prefix tree", f"{total} node{'' if total == 1 else 's'}")]
    # a parent is never used longer ago than its child: the first ones include their parents
    best = sorted(nodes, key=lambda node: (-node["refs"], node["last_used_s"]))
    chosen: dict[int, dict[str, Any]] = {}
    by_id = {node["id"]: node for node in nodes}
    for leaf in best:
        path = []
        above: dict[str, Any] | None = leaf
        while above is not None and above["id"] not in chosen:
            path.append(above)
            above = by_id.get(above["parent"])
        if len(chosen) + len(path) <= height - 1:
            chosen.update((step["id"], step) for step in path)
    children: dict[int | None, list[dict[str, Any]]] = {}
    for node in best:
        if node["id"] in chosen:
            children.setdefault(node["parent"], []).append(node)
    stack = [(node, 0) for node in reversed(children.get(None, []))]
    while stack:
        node, depth = stack.pop()
        stack += [(child, depth + 1) for child in reversed(children.get(node["id"], []))]
        branch = "" if depth == 0 else "  " * (min(depth, 6) - 1) + ("`-" if ascii_only else "└ ")
        line = Text(f"{branch}{node['tokens']} tok")
        held = node["refs"] > 0
        line.append(f" x{node['refs']}" if held else f" {_age(node['last_used_s'])} ago",
                    _SHARED_STYLE if node["refs"] > 1 else ("green" if held else _DIM))
        lines.append(line)
    return lines


def _title(width: int, name: str, *more: str) -> Text:
    """A title, and the first of the texts that fits behind it."""
    line = Text().append(name, _TITLE)
    for text in more:
        if text and cell_len(name) + 2 + cell_len(text) <= width:
            return line.append(f"  {text}", _DIM)
    return line


def _fit(text: str, width: int) -> str:
    """The text in exactly so many cells; of a long one the beginning and the end."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    if cell_len(text) > width > 8:
        text = f"{text[: width - 6]}..{text[-4:]}"
    return set_cell_size(text, width)


def _age(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f}s"
    if seconds < 6000:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.0f}h"
