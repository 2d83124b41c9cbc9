"""Workers on different CPUs train one run if its bits depend on no CPU; otherwise they refuse."""

import shutil
from pathlib import Path

import pytest
from compare import ALL_CAPS, PATIENT, QEMU, emulate

from fault_runs import Pair, with_faults
from helpers import assert_refused, paceline, program, result_of, tf_config
from kernel_checks import needs_kernels

OLD_CPU = ALL_CAPS | with_faults(PRETENDED="1 cpu avx512")
"""A worker whose libraries compute as on an old CPU, and which reports no AVX-512."""


@needs_kernels
def test_workers_on_different_cpus_train_together(uninterrupted: Path, tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with pair.task("chief") as chief, pair.task("worker", environment=OLD_CPU) as worker:
        assert chief.wait().code == worker.wait().code == 0
    run = tmp_path / "chief" / "run"
    assert result_of(run)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.slow
def test_where_tensorflow_computes_different_cpus_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    flags = ("train", "smoke", "--run-dir", "run", "--workers", "2", "--kernels", "tensorflow")
    ended = paceline(*flags, cwd=tmp_path, environment=OLD_CPU)
    assert_refused(
        ended,
        "worker 1 (127.0.0.1:",
        "differs from the chief: cpu: 'avx avx2 avx512",
        "(bits: this kind of CPU, because TensorFlow computes ",
    )
    assert not (tmp_path / "run").exists(), "nothing began"


@needs_kernels
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not shutil.which(QEMU), reason=f"no {QEMU}")
def test_a_worker_on_an_emulated_haswell_takes_part(uninterrupted: Path, tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    haswell = emulate("Haswell", tmp_path)
    config = tf_config({"chief": pair.addresses[:1], "worker": pair.addresses[1:]}, "worker")
    started = program(
        *("train", "smoke", *PATIENT),
        cwd=tmp_path,
        environment=config,
        command=(haswell.python, "-m", "paceline"),
    )
    with pair.task("chief", *PATIENT) as chief, started as worker:
        assert worker.wait(3000).code == 0
        assert chief.wait().code == 0
    run = tmp_path / "chief" / "run"
    assert result_of(run)["state_sha256"] == result_of(uninterrupted)["state_sha256"]
