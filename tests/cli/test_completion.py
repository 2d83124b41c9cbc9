"""`paceline completion`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path


def test_bash_completes_commands_flags_and_values(tmp_path: Path):
    command = tmp_path / "bin" / "paceline"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m paceline "$@"\n')
    command.chmod(0o755)
    script = 'eval "$(paceline completion bash)"; complete -p paceline\n'
    for line in (
        "paceline tens",
        "paceline data conv",
        "paceline train smoke --threads-per",
        "paceline export x y --to save",
    ):
        words = " ".join(shlex.quote(word) for word in line.split())
        script += f"COMP_WORDS=({words}); COMP_CWORD={len(line.split()) - 1}; _tyro_paceline; "
        script += 'echo "${COMPREPLY[@]}"\n'
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "complete -F _tyro_paceline paceline",
        "tensorboard",
        "convert",
        "--threads-per-replica",
        "savedmodel",
    ], done.stderr
