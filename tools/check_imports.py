"""Import direction check: every import inside octavo/ must go down the layers of docs/STRUCTURE.md.

    python tools/check_imports.py        exits 1 and prints one line for each forbidden import

`ALLOWED` lists, for each package (or top-level module), what it may import of octavo besides
itself. TYPE_CHECKING imports obey the same list.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "octavo"

_BASE = {"errors", "env"}
_CORE = _BASE | {"core", "config"}
_GRAPH = _BASE | {"graph"}
_MODELS = _GRAPH | {"models", "weights"}
_BACKENDS = _MODELS | {"backends", "_native"}
_WORKER = _BACKENDS | _CORE
_EXECUTOR = _WORKER | {"worker", "executor"}
_ENGINE = _EXECUTOR | {
    "engine", "scheduler", "kvcache", "tokenizer", "grammar", "config_resolve", "machine",
    "log_format",
}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "env": {"errors"},
    "log_format": set(),
    "machine": _BASE,
    "core": _BASE,
    "config": _BASE | {"core"},
    "config_resolve": _CORE | {"env", "machine", "kvcache", "weights", "backends", "_native"},
    "kvcache": _CORE,
    "scheduler": _CORE | {"kvcache", "grammar"},
    "grammar": _CORE,
    "graph": _BASE,
    "weights": _BASE | {"_native"},
    "models": _GRAPH | {"weights"},
    "tokenizer": _BASE,
    "tools": _BASE | {"core", "tokenizer"},
    "backends": _MODELS | {"_native"},
    "worker": _WORKER,
    "executor": _EXECUTOR,
    "engine": _ENGINE,
    "server": _ENGINE | {"server", "tools"},
    "cli": _ENGINE | {"server", "bench", "reproduce", "tools"},
    "bench": _ENGINE | {"server"},
    "reproduce": _ENGINE | {"bench", "server", "testing", "tools"},
    "testing": _ENGINE | {"server", "testing", "tools"},
    "__init__": _ENGINE,
    "__main__": {"cli"},
}
# These must import with nothing but the standard library and msgspec installed.
STDLIB_ONLY = {"core", "kvcache", "scheduler", "errors", "env", "config", "log_format"}


def package_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import, `from octavo import x` as octavo.x."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            if node.module == "octavo":
                for alias in node.names:
                    yield node.lineno, f"octavo.{alias.name}"
            else:
                yield node.lineno, node.module


def violations(root: Path = ROOT) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        package = package_of(path)
        where = path.relative_to(root.parent)
        if package not in ALLOWED:
            found.append(f"{where}: package {package} has no rule in tools/check_imports.py")
            continue
        for line, name in imports_of(path):
            top, _, rest = name.partition(".")
            if name == "octavo.__version__":
                continue  # a constant of the package root, which imports nothing by itself
            if top == "octavo":
                target = rest.split(".")[0] or "__init__"
                if target != package and target not in ALLOWED[package]:
                    found.append(f"{where}:{line}: {package} must not import octavo.{target}")
            elif package in STDLIB_ONLY and top != "msgspec" and top not in sys.stdlib_module_names:
                found.append(f"{where}:{line}: {package}: stdlib and msgspec only, not {top}")
            elif top in ("torch", "transformers"):
                found.append(f"{where}:{line}: no {top} in the base package")
    return found


if __name__ == "__main__":
    problems = violations()
    print("\n".join(problems) if problems else "imports: ok")
    sys.exit(bool(problems))
