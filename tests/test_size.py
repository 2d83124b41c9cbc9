"""The program stays as small as it has become: these limits only go down.

`python tests/support/sizes.py` prints the figures.
"""

from pathlib import Path

import sizes


def test_the_program_stays_small(tmp_path: Path) -> None:
    ran, imported = sizes.main_path(tmp_path)
    figures = {
        "all": sizes.count(sizes.whole()),
        "main path, runs": sizes.count(ran),
        "main path, imported": sizes.count(imported),
        "imported by worker.py": sizes.count(sizes.closure("paceline.worker")),
    }
    limits = {
        "all": (26_755, 202),
        "main path, runs": (9_360, 67),
        "main path, imported": (9_940, 75),
        "imported by worker.py": (10_075, 76),
    }
    too_large = {
        name: f"{lines} lines in {files} files, at most {limits[name]}"
        for name, (lines, files) in figures.items()
        if lines > limits[name][0] or files > limits[name][1]
    }
    assert not too_large


def test_functions_have_at_most_40_lines_and_files_300() -> None:
    assert sizes.long_functions() == []
    assert [str(path) for path in sizes.whole() if sizes.count([path])[0] > 300] == []
