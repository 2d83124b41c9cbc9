"""Mutated command lines: `main` of `paceline.cli.commands`, in this process, beside a damaged run.

Every command is real up to the start of its workers. A command ends with exit code 0, or with 2 and
one line. A target of `hostile_inputs.py`.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from mutations import json_input, mutate
from paceline.cli.commands import main
from paceline.errors import UserError
from paceline.storage.files import unsealed
from paceline.supervise.group import Group
from report_runs import make_run

COMMANDS = """train smoke|train smoke|train shapes|train nothing|train shapes --run-dir runs/one|
runs runs|report runs/one -o page.html|eval runs/one|eval runs/one --json|eval|
predict runs/one runs/one/lock|export runs/one out --to keras|recipes|data check runs|
data info runs/one|data|data convert runs out|nothing|zoo"""
TRAIN_FLAGS = """--seed --epochs --steps --replicas --workers --global-batch-size --json --run-dir
--model.depth --model.width --schedule.rate --stall-timeout --start-timeout --scaling.mean --on
--records.raw-shape --sync.method --kernels --keep --ps --optimizer.momentum --dry-run
--scaling.std --schedule.boundaries"""
OTHER_FLAGS = """--sort --checkpoint --top --top-k --views --to -o --force --split --data.split
--shards --first-label --help --json -x"""
VALUES = (
    *("0", "-1", "1", "2", "4", "20", "nan", "inf", "-inf", "1e308", "1e-320", "9" * 5000, ""),
    *("²", "٣", "\udcff", "0x10", "1_000", "True", "gradients", "local", "10,20", "20,10", "a b"),
    *("--", "\0", "best", "mirror", "accuracy", "runs/one"),
)


def run_command(words: list[str], here: Path) -> None:
    """Run a command. Check that it ended as it may."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.object(Group, "__enter__", side_effect=UserError("there are no workers here")),
        contextlib.chdir(here),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main(words)
        except SystemExit as end:  # of --help
            code = int(end.code or 0)
    text, errors = (each.buffer.getvalue().decode() for each in (out, err))
    assert "Traceback" not in text + errors, errors
    *before, last = errors.rstrip("\n").split("\n")
    left_out = code == 1 and words[:1] == ["report"] and "paceline: left out: " in errors
    assert code in (0, 2) or left_out, (code, errors)
    if code == 2:
        assert last.startswith("paceline: "), errors
        assert all(line.startswith(("note: ", "warning: ")) for line in before), errors
    assert len(last) < 20_000, last[:200]


def command_lines(folder: Path) -> Callable[[random.Random], bytes]:
    """All commands that run in this process and need no network; one file of a run is damaged."""
    here = folder / "work" / "here"
    made = make_run(folder / "kept", records=8, examples=20, side=4)

    def attempt(chance: random.Random) -> bytes:
        shutil.rmtree(folder / "work", ignore_errors=True)
        shutil.copytree(made, here / "runs" / "one")
        damaged = here / "runs" / "one" / chance.choice(("config.json", "result.json", "x"))
        content = b""
        if damaged.exists():
            content = json_input(unsealed(json.loads(damaged.read_text())), chance)
            damaged.write_bytes(content)
        words = chance.choice(COMMANDS.replace("\n", "").split("|")).split()
        fitting = TRAIN_FLAGS if "train" in words else OTHER_FLAGS
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            flags = fitting if chance.random() < 0.9 else f"{TRAIN_FLAGS} {OTHER_FLAGS}"
            flag = chance.choice(flags.split())
            if chance.random() < 0.1:
                flag = mutate(flag.encode(), chance).decode(errors="replace")
            words += [flag, *chance.choices(VALUES, k=chance.choice((0, 1, 1, 1, 3)))]
        if chance.random() < 0.1:
            chance.shuffle(words)
        run_command([word.replace("\0", "") for word in words], here)  # as in a command line
        return " ".join(words).encode(errors="surrogateescape") + b"\n" + content

    return attempt
