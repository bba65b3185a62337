"""Size check: files of at most 500 lines (hubs 700), Python functions of about 60.

    python tools/check_sizes.py          exits 1 and prints one line for each excess
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 500
MAX_HUB_LINES = 700
MAX_MODEL_LINES = 150
# "About 60": a little air, so that a docstring never has to be shortened for the count.
MAX_FUNCTION_LINES = 70
HUBS = {
    "octavo/kvcache/manager.py",
    "octavo/scheduler/scheduler.py",
    "octavo/worker/model_runner.py",
    "octavo/engine/core.py",
}


def limit_of(name: str) -> int:
    if name in HUBS:
        return MAX_HUB_LINES
    if name.startswith("octavo/models/") and Path(name).stem not in ("__init__", "registry"):
        return MAX_MODEL_LINES
    return MAX_FILE_LINES


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        first = node.body[0]
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def violations(root: Path = ROOT) -> list[str]:
    found = []
    files = [p for d in ("octavo", "csrc", "tools") for p in sorted((root / d).rglob("*"))
             if p.suffix in (".py", ".cc", ".cpp", ".h")]
    for path in files:
        name = path.relative_to(root).as_posix()
        text = path.read_text()
        lines = text.count("\n")
        if lines > limit_of(name):
            found.append(f"{name}: {lines} lines, at most {limit_of(name)}")
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(text, name)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = code_lines(node)
                if size > MAX_FUNCTION_LINES:
                    found.append(f"{name}:{node.lineno}: {node.name} has {size} lines, "
                                 f"at most {MAX_FUNCTION_LINES}")
    return found


if __name__ == "__main__":
    problems = violations()
    print("\n".join(problems) if problems else "sizes: ok")
    sys.exit(bool(problems))
