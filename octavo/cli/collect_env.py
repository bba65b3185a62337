"""`octavo collect-env`: versions and machine facts, for a bug report. Never fails."""

import argparse
import platform
import sys

from octavo.cli.flags import Commands

_PACKAGES = ("numpy", "tokenizers", "safetensors", "jinja2", "llguidance", "starlette", "uvicorn",
             "uvloop", "httptools", "msgspec", "prometheus-client", "rich", "huggingface_hub")
_GIB = 1 << 30


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("collect-env", help="versions and machine facts for a bug report")
    parser.set_defaults(run=run)
    parser.add_argument("--native-only", action="store_true",
                        help="only say so if the native module is missing")


def run(args: argparse.Namespace) -> int:
    """Prints facts, one a line."""
    from octavo.backends.cpu.backend import native_problem

    problem = native_problem()
    if args.native_only:
        if problem is not None:
            print(f"octavo: the native module is not in use ({problem}): running on the slower "
                  "NumPy backend. For speed, install a C++17 compiler and reinstall.")
        return 0
    for name, value in (*_versions(), *_machine(problem is None), *_native(problem)):
        print(f"{name:<24} {value}")
    return 0


def _versions() -> list[tuple[str, str]]:
    from importlib import metadata

    from octavo import __version__

    found = [("octavo", __version__), ("python", sys.version.split()[0]),
             ("platform", platform.platform())]
    for package in _PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    return found


def _machine(has_native: bool) -> list[tuple[str, str]]:
    from octavo.machine import machine_facts

    facts = machine_facts(has_native=has_native)
    quota = "none" if facts.cpu_quota is None else f"{facts.cpu_quota:g} CPUs"
    return [
        ("cpu", _cpu_model()),
        ("cpus / cores usable", f"{facts.num_affinity_cpus} / {facts.num_cores}"),
        ("cpu quota", quota),
        ("memory available", f"{facts.available_bytes / _GIB:.1f} GiB"),
    ]


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _native(problem: str | None) -> list[tuple[str, str]]:
    if problem is not None:
        return [("native module", f"no: {problem}"), ("backend", "reference (NumPy)")]
    import octavo._native as native
    from octavo.env import cpu_isa
    from octavo.errors import ConfigError

    try:
        forced = cpu_isa()
    except ConfigError as error:
        forced = error.message
    found = [("native module", "yes"), ("backend", "cpu"),
             ("instruction sets", ", ".join(str(isa) for isa in native.kernel_isas()))]
    if forced is not None:
        found.append(("OCTAVO_CPU_ISA", forced))
    return found
