"""Mutated inputs through the command line: `main` of `paceline.cli.commands`, in this process.

Every command is real up to the start of its workers. In their place, `first_acts` does what a chief
does before it imports TensorFlow. A command ends with exit code 0, or with 2 and one line. Targets
of `hostile_inputs.py`; not a test itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from mutations import json_input, mutate, mutate_json
from paceline.cli.commands import main
from paceline.errors import UserError
from paceline.job import Job
from paceline.messages import Result, Send
from paceline.run_folder.finished import find_finished
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import unsealed
from paceline.supervise.group import Group
from report_runs import make_run

Attempt = Callable[[random.Random], bytes]
FACTS = {"train": 100, "test": 20, "classes": ["cat", "dog"]}
RESULT = {"step": 4, "finished": True, "test_accuracy": 0.5, "state_sha256": "00"}
NO_WORKER = "there are no workers here"


def first_acts(group: Group, listen: Send) -> dict[str, Any]:
    """Do what a chief does before it imports TensorFlow."""
    job = Job.from_json(json.loads(json.dumps(group.workers[0].job.to_json())))
    if job.request is not None:
        raise UserError(NO_WORKER)
    run, here = RunFolder(job.run.run_dir), Path.cwd().parents[1]
    if not job.cluster.is_chief or not run.path.absolute().is_relative_to(here):
        raise UserError(NO_WORKER)
    run.lock(0.0)
    try:
        found = find_finished(run, job.experiment, listen)
        if found is None:
            run.open(job.experiment, run.data_facts() if run.exists() else FACTS)
            found = Result(RESULT | {"run_dir": run.where})
    finally:
        run.unlock()
    listen(found)
    return found.values


def run_command(words: list[str], here: Path, **environment: str) -> tuple[int, str]:
    """Run a command; return its exit code and output. Check that it ended as it may."""
    here.mkdir(parents=True, exist_ok=True)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.multiple(Group, __enter__=lambda group: group, __exit__=lambda *_: None),
        mock.patch.object(Group, "run", first_acts),
        mock.patch.dict(os.environ, environment),
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
    return code, text


def by_commands(folder: Path) -> Attempt:
    """A run with one damaged file, shown, used and continued."""
    runs, here = folder / "runs", folder / "work" / "here"
    path = make_run(runs / "one", records=8, examples=20, side=4)
    RunFolder(path).metrics.truncate(10**9)  # seals the lines
    whole = {
        name: (path / name).read_bytes() for name in ("config.json", "result.json", "metrics.jsonl")
    }
    commands = (
        *(["runs", str(runs)], ["runs", str(runs), "--sort", "accuracy"], ["eval", str(path)]),
        *(["predict", str(path), str(path / "config.json")], ["eval", str(path), "--json"]),
        ["export", str(path), "weights.safetensors", "--to", "safetensors"],
        *(["train", "shapes", "--run-dir", str(path)], ["train", "smoke", "--run-dir", str(path)]),
        ["report", str(path), "-o", "page.html", "--force"],
    )

    def attempt(chance: random.Random) -> bytes:
        name = chance.choice(list(whole))
        content = mutate(whole[name], chance)
        if name != "metrics.jsonl":
            content = json_input(unsealed(json.loads(whole[name])), chance)
        (path / name).write_bytes(content)
        try:
            run_command(chance.choice(commands), here)
        finally:
            for each in path.iterdir():
                if each.is_file() and each.name.endswith((".log", ".tmp", "lock")):
                    each.unlink()
            for each, kept in whole.items():
                (path / each).write_bytes(kept)
        return content

    return attempt


def by_tf_config(folder: Path) -> Attempt:
    original = {
        "cluster": {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "[::1]:3"]},
        "task": {"type": "chief", "index": 0},
    }

    def attempt(chance: random.Random) -> bytes:
        text = json.dumps(mutate_json(original, chance), ensure_ascii=chance.random() < 0.5)
        if chance.random() < 0.5:
            text = mutate(json.dumps(original).encode(), chance).decode(errors="surrogateescape")
        variable = text.encode("utf-8", "surrogatepass" if "\ud800" in text else "surrogateescape")
        variable = variable.replace(b"\0", b"")  # no environment has it
        shutil.rmtree(folder / "work", ignore_errors=True)
        words = ["train", "smoke", "--steps", "4"]
        run_command(words, folder / "work" / "here", TF_CONFIG=os.fsdecode(variable))
        return variable

    return attempt


COMMANDS = (
    *(["train", "smoke"], ["train", "smoke"], ["train", "shapes"], ["train", "nothing"]),
    *(["runs", "runs"], ["report", "runs/one", "-o", "page.html"], ["eval", "one"], ["eval"]),
    *(["predict", "one", "runs/one/lock"], ["export", "one", "out", "--to", "keras"], ["recipes"]),
    *(["data", "check", "runs"], ["data", "info", "runs/one"], ["data"], ["completion", "bash"]),
    *(["data", "convert", "runs", "out"], ["nothing"], ["zoo"]),
)
TRAIN_FLAGS = (
    *("--seed", "--epochs", "--steps", "--replicas", "--workers", "--global-batch-size", "--json"),
    *("--model.depth", "--model.width", "--schedule.rate", "--stall-timeout", "--start-timeout"),
    *("--scaling.mean", "--records.raw-shape", "--sync.method", "--kernels", "--profile", "--keep"),
    *("--ps", "--optimizer.momentum", "--scaling.std", "--schedule.boundaries", "--on"),
    *("--dry-run", "--run-dir"),
)
OTHER_FLAGS = (
    *("--sort", "--checkpoint", "--top", "--top-k", "--views", "--to", "-o", "--force", "--split"),
    *("--data.split", "--shards", "--first-label", "--help", "--csv", "--json", "-x"),
)
VALUES = (
    *("0", "-1", "1", "2", "4", "20", "nan", "inf", "-inf", "1e308", "1e-320", "9" * 5000, ""),
    *("²", "٣", "\udcff", "0x10", "1_000", "True", "gradients", "local", "10,20", "20,10", "a b"),
    *("--", "\0", "best", "mirror", "accuracy", "runs/one"),
)


def by_words(folder: Path) -> Attempt:
    """Command lines of all commands that run in this process and need no network."""
    here = folder / "work" / "here"
    made = make_run(folder / "kept", records=8, examples=20, side=4)

    def attempt(chance: random.Random) -> bytes:
        words = list(chance.choice(COMMANDS))
        fitting = TRAIN_FLAGS if "train" in words else OTHER_FLAGS
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            flag = chance.choice(fitting if chance.random() < 0.9 else TRAIN_FLAGS + OTHER_FLAGS)
            if chance.random() < 0.1:
                flag = mutate(flag.encode(), chance).decode(errors="replace")
            count = chance.choice((0, 1, 1, 1, 3))
            words += [flag, *(chance.choice(VALUES) for _ in range(count))]
        if chance.random() < 0.1:
            chance.shuffle(words)
        shutil.rmtree(folder / "work", ignore_errors=True)
        shutil.copytree(made, here / "runs" / "one")
        run_command(words, here)
        return " ".join(words).encode(errors="surrogateescape")

    return attempt


COMMAND_TARGETS: dict[str, tuple[Callable[[Path], Attempt], float]] = {
    "runs by commands": (by_commands, 0.5),
    "tf_config by commands": (by_tf_config, 0.3),
    "command lines": (by_words, 0.5),
}
"""As `hostile_inputs.TARGETS`."""
