"""How large the program is: lines and files of all of it, and of what one command runs.

    python tests/support/sizes.py                 # prints the figures

A file is on the main path if one of its functions runs in `paceline train shapes --workers 2`.
"""

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "paceline"
TRACING = Path(__file__).parent / "tracing"
COMMAND = "train shapes --workers 2 --stop-at 2"


def count(files: Iterable[Path]) -> tuple[int, int]:
    """Return lines and files."""
    each = [len(path.read_text().splitlines()) for path in files]
    return sum(each), sum(lines > 0 for lines in each)


def whole() -> list[Path]:
    """Return all Python files of the program."""
    return sorted(PACKAGE.rglob("*.py"))


def main_path(folder: Path) -> tuple[list[Path], list[Path]]:
    """Run the command here; return the files in which something runs, and all imported."""
    traces = folder / "traces"
    traces.mkdir()
    environment = os.environ | {
        "PYTHONPATH": f"{TRACING}{os.pathsep}{PACKAGE.parent}",
        "PACELINE_TRACE": str(traces),
        "PACELINE_TRACED": str(PACKAGE),
    }
    command = [sys.executable, "-m", "paceline", *COMMAND.split(), "--run-dir", "run"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    lines = [line.split(" ", 1) for file in traces.iterdir() for line in file.open()]
    ran = {path.strip() for kind, path in lines if kind == "ran"}
    return sorted(map(Path, ran)), sorted({Path(path.strip()) for _, path in lines})


def closure(module: str) -> list[Path]:
    """Return the files that a module imports, directly or through others, at any time."""
    found, waiting = set[Path](), [module]
    while waiting:
        name = waiting.pop()
        path = PACKAGE.parent / name.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists() and file not in found:
            found.add(file)
            waiting += _imports(file)
    return sorted(found)


def _imports(file: Path) -> list[str]:
    names, waiting = [], [ast.parse(file.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return [name for name in names if name.startswith("paceline.")]


def long_functions(limit: int = 40) -> list[str]:
    """Return the functions with more lines than this, docstrings included."""
    return [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name} {node.end_lineno - node.lineno + 1}"
        for path in whole()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= limit
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ran, imported = main_path(Path(folder))
    text = "\n".join(path.read_text() for path in whole())
    rows = {
        "src/paceline": count(whole()),
        "main path, runs": count(ran),
        "main path, imported": count(imported),
        "import closure of worker.py": count(closure("paceline.worker")),
        "tests": count((ROOT / "tests").rglob("*.py")),
    }
    for name, (lines, files) in rows.items():
        print(f"{name:30} {lines:7,} lines {files:4} files")
    print("functions over 40 lines:", *long_functions())
    print("files over 300 lines:", *(path for path in whole() if count([path])[0] > 300))
    print("Any:", text.count("Any"), " dict[str, Any]:", text.count("dict[str, Any]"))


if __name__ == "__main__":
    main()
