"""Which kernels a training uses: chosen, stored, compared, and never changed silently."""

import json
import shutil
from pathlib import Path

import pytest

from helpers import fine, once_per_session, paceline, result_of, train_smoke
from in_process import paceline_here
from kernel_checks import needs_kernels
from paceline.kernels import library

NO_KERNELS = {library.DISABLE: "1"}
STOCK = ("--kernels", "tensorflow")


@needs_kernels
def test_a_run_stores_which_kernels_it_used(uninterrupted: Path) -> None:
    assert json.loads((uninterrupted / "config.json").read_text())["kernels"] == "own"


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `train smoke --kernels tensorflow`."""

    def make(folder: Path) -> None:
        fine(paceline("train", "smoke", "--run-dir", "run", *STOCK, cwd=folder))

    return once_per_session(tmp_path_factory, "stock-kernels", make) / "run"


@pytest.mark.slow
@needs_kernels
def test_without_own_kernels_auto_uses_tensorflows_and_says_why(
    uninterrupted: Path, stock: Path, tmp_path: Path
) -> None:
    """TensorFlow then computes sums and updates, too."""
    ended = fine(
        paceline("train", "smoke", "--run-dir", "run", cwd=tmp_path, environment=NO_KERNELS)
    )
    assert f"slower: {library.DISABLE} is set" in ended.out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["kernels"] == "tensorflow"
    runs = (tmp_path / "run", stock, uninterrupted)
    assert len({result_of(run)["state_sha256"] for run in runs}) == 3


@pytest.mark.slow
def test_tensorflows_kernels_give_the_same_bits_on_two_workers(stock: Path, tmp_path: Path) -> None:
    """tests/claims/test_any_experiment.py does the same with every engine."""
    fine(train_smoke(tmp_path, "run", *STOCK, "--workers", "2"))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["kernels"] == "tensorflow"
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(stock)["state_sha256"]


@needs_kernels
@pytest.mark.parametrize("flags", [("--kernels", "tensorflow"), ()], ids=["flag", "auto"])
def test_a_resume_with_other_kernels_is_refused_in_one_line_that_names_the_flag(
    stopped_at_5: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """They are others by the flag, or because this machine has none of its own."""
    shutil.copytree(stopped_at_5, tmp_path / "run")
    environment = {} if flags else NO_KERNELS
    flags = ("train", "smoke", "--run-dir", "run", *flags)
    ended = paceline_here(*flags, cwd=tmp_path, environment=environment)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert "run was trained with --kernels own; --kernels tensorflow gives different bits" in line
    assert result_of(tmp_path / "run")["step"] == 5


@pytest.mark.slow
@needs_kernels
def test_a_run_of_own_kernels_is_evaluated_with_them_or_else_with_a_note(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline import build as module

    models, accelerate = [], module.accelerate
    monkeypatch.setattr(
        module, "accelerate", lambda model: models.append(model) or accelerate(model)
    )
    flags = ("eval", str(uninterrupted), "--json")
    own = paceline_here(*flags, cwd=tmp_path)
    assert (own.code, own.err, len(models)) == (0, "", 1), "own kernels are used"
    other = paceline_here(*flags, cwd=tmp_path, environment=NO_KERNELS)
    assert (other.code, len(models)) == (0, 1), "TensorFlow's are used"
    assert f"last digits may differ without them: {library.DISABLE} is set" in other.err
    losses = [json.loads(ended.out)["loss"] for ended in (own, other)]
    assert losses[0] == result_of(uninterrupted)["test_loss"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
@needs_kernels
def test_bfloat16_has_the_same_bits_with_and_without_the_cpus_instruction(tmp_path: Path) -> None:
    flags = ("train", "smoke", "--steps", "3", "--precision", "bfloat16")
    runs = {"with": {}, "without": {library.AVX512: "0"}}
    for name, environment in runs.items():
        given = (*flags, "--run-dir", name)
        ended = fine(paceline(*given, cwd=tmp_path, environment=environment))
        assert "bits: any CPU" in ended.out
    assert "bfloat16 is slower than float32; its bits are the same" in ended.out
    digests = [result_of(tmp_path / name)["state_sha256"] for name in runs]
    assert digests[0] == digests[1]


def test_own_kernels_that_are_missing_are_one_line(tmp_path: Path) -> None:
    flags = ("--run-dir", "run", "--kernels", "own")
    ended = paceline_here("train", "smoke", *flags, cwd=tmp_path, environment=NO_KERNELS)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert (
        f"kernels is own, but {library.DISABLE} is set: unset it; or pass --kernels tensorflow"
        in line
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--precision", "float16"), "they are for float32 and bfloat16"),
        (("--threads-per-replica", "2", "--replicas", "1"), "they use one thread"),
    ],
)
def test_own_kernels_that_do_not_fit_the_experiment_are_one_line(
    tmp_path: Path, flags: tuple[str, ...], reason: str
) -> None:
    run = paceline if "--threads-per-replica" in flags else paceline_here
    ended = run("train", "smoke", "--dry-run", "--kernels", "own", *flags, cwd=tmp_path)
    assert ended.code == 2
    assert reason in ended.err
