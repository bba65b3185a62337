"""The structure checks, and proof that they can fail."""

from pathlib import Path

from tools import check_imports, check_sizes


def test_imports_go_down() -> None:
    assert check_imports.violations() == []


def test_files_and_functions_stay_small() -> None:
    assert check_sizes.violations() == []


def test_import_check_sees_an_upward_import(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "octavo"
    (package / "core").mkdir(parents=True)
    (package / "core" / "x.py").write_text("import numpy\nfrom octavo.engine import core\n")
    monkeypatch.setattr(check_imports, "ROOT", package)
    found = check_imports.violations(package)
    assert len(found) == 2
    assert "numpy" in found[0] and "octavo.engine" in found[1]


def test_size_check_sees_long_files_and_functions(tmp_path: Path) -> None:
    for name in ("csrc", "tools", "octavo"):
        (tmp_path / name).mkdir()
    (tmp_path / "octavo" / "long.py").write_text("x = 1\n" * 501)
    (tmp_path / "octavo" / "f.py").write_text("def f():\n" + "    x = 1\n" * 80)
    found = check_sizes.violations(tmp_path)
    assert [line.split(":")[0] for line in found] == ["octavo/f.py", "octavo/long.py"]
