"""The benchmark's harness with tiny contenders, its statistics and its count of operations; no
TensorFlow, no torch."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import harness, report
from benchmarks.__main__ import parse
from benchmarks.flops import forward_multiply_adds, resnet_products, training_flops
from benchmarks.harness import Contender, ContenderFailed, Measured, Turn, alternate
from benchmarks.heats import choose_fastest
from benchmarks.images import cifar10_folder, load_training_images
from benchmarks.index_probe import SHARDS, make, write_shards
from benchmarks.pair import paceline_pair, pair_figures
from benchmarks.pictures import draw_pictures, picture_folder
from benchmarks.suites import SUITES, Settings, load
from benchmarks.summary import Figure, Quartiles, SuiteResult, Target, best, quartiles, ratio, rows
from rich.console import Console

PAIR = (("paceline", 200, 5_000_000), ("paceline-tensorflow", 100, 4_000_000))
SERVE = "from benchmarks.protocol import serve; import time\n"


def fake(name: str, program: str) -> Contender:
    return Contender(name, (sys.executable, "-c", textwrap.dedent(program)))


def sleeper(name: str, seconds_per_step: float) -> Contender:
    return fake(
        name,
        SERVE + f"serve(lambda steps: [time.sleep({seconds_per_step} * steps), 10 * steps][1])",
    )


def measured(name: str, speeds: list[float]) -> Measured:
    return Measured(
        name, 1, tuple(Turn(images=speed, wall_s=1.0, cpu_s=2.0) for speed in speeds), 0.0
    )


def gone(pid: int) -> bool:
    """Dead, or a zombie that nobody waits for."""
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_turns_are_calibrated_and_the_faster_contender_wins_by_its_factor() -> None:
    results = alternate(
        [sleeper("quick", 0.01), sleeper("slow", 0.03)], rounds=3, turn_seconds=0.15
    )
    assert [len(each.turns) for each in results.values()] == [3, 3]
    assert results["quick"].steps_per_turn > results["slow"].steps_per_turn
    assert 2 < ratio(results["quick"], results["slow"]).median < 4
    assert best(results, "") == "quick"
    assert all(each.idle_cpu_share < 0.2 for each in results.values())


def test_of_a_group_only_the_fastest_takes_part_and_a_note_names_all() -> None:
    contenders = [
        sleeper("ours", 0.05),
        sleeper("theirs-slow", 0.03),
        sleeper("theirs-quick", 0.01),
        sleeper("alone-here", 0.05),
    ]
    settings = Settings(1, 0.1, lambda message: None)
    chosen, notes = choose_fastest(contenders, ("theirs-", "alone-"), settings)
    assert [each.name for each in chosen] == ["ours", "theirs-quick", "alone-here"]
    (note,) = notes
    assert all(part in note for part in ("theirs-slow", "theirs-quick takes part"))


def test_several_processes_are_one_contender_and_a_turn_ends_with_the_slowest() -> None:
    program = """
    import sys
    from benchmarks.protocol import serve_processes
    part = "from benchmarks.protocol import serve; import time; "
    part += "serve(lambda steps: [time.sleep({} * steps), 10 * steps][1])"
    serve_processes([[sys.executable, "-c", part.format(s)] for s in (0.01, 0.02)], sum)
    """
    both = alternate([fake("both", program)], rounds=2, turn_seconds=0.2)["both"]
    assert both.turns[0].images == 20 * both.steps_per_turn
    assert both.turns[0].wall_s >= 0.02 * both.steps_per_turn
    assert both.peak_bytes > 10e6, "all three processes count"


def test_the_figures_of_both_kernels() -> None:
    turns = [replace(measured(name, [speed] * 3), peak_bytes=peak) for name, speed, peak in PAIR]
    speed, cpu, memory = pair_figures({each.name: each for each in turns}, Target(">=", 1.5))
    assert (speed.measured.median, speed.reached) == (2.0, True)
    assert cpu.measured.median == 2.0
    assert (memory.measured.median, memory.reached) == (1.25, False)
    own, stock = paceline_pair("contender_paceline", "20", "data")
    assert own.command == stock.command
    assert own.environment != stock.environment


def test_what_a_contender_prints_is_not_taken_for_an_answer() -> None:
    chatty = fake(
        "chatty",
        SERVE
        + "serve(lambda steps: [print('noise', flush=True), time.sleep(0.01 * steps), steps][2])",
    )
    assert alternate([chatty], rounds=1, turn_seconds=0.02)["chatty"].turns[0].images >= 1


def test_cpu_time_of_a_busy_contender_is_counted_and_idle_time_is_not() -> None:
    busy = fake(
        "busy",
        SERVE
        + """
        def work(steps):
            end = time.process_time() + 0.05 * steps
            while time.process_time() < end:
                pass
            return steps
        serve(work)
        """.replace("\n        ", "\n"),
    )
    results = alternate([busy, sleeper("idle", 0.05)], rounds=2, turn_seconds=0.2)
    assert results["busy"].turns[0].cpu_ms_per_image >= 49
    assert results["idle"].turns[0].cpu_ms_per_image < 5


def test_a_contender_that_uses_cpu_between_turns_is_seen() -> None:
    spinning = (
        "import threading\ndef spin():\n    while True: pass\n"
        "threading.Thread(target=spin, daemon=True).start()\n"
    )
    results = alternate(
        [
            fake(
                "spinner",
                SERVE + spinning + "serve(lambda steps: [time.sleep(0.05 * steps), steps][1])",
            ),
            sleeper("idle", 0.05),
        ],
        2,
        0.3,
    )
    assert results["spinner"].idle_cpu_share > report.IDLE_LIMIT


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("import sys; input(); sys.exit('out of patience')", "died in its turn"),
        ("import sys; sys.exit('out of patience')", "died"),
        (
            "import sys; input(); print('out of patience', file=sys.stderr); "
            "print('hello', flush=True); input()",
            "not a turn",
        ),
        (
            "import sys, time; print('out of patience', file=sys.stderr, flush=True); "
            "time.sleep(60)",
            "no answer within 2 s",
        ),
    ],
)
def test_a_contender_that_fails_is_named_with_the_end_of_its_stderr(
    program: str, complaint: str
) -> None:
    started = time.monotonic()
    with pytest.raises(ContenderFailed, match=complaint) as failure:
        alternate(
            [sleeper("healthy", 0.01), fake("broken", program)],
            rounds=1,
            turn_seconds=0.05,
            timeout_s=2,
        )
    assert "contender broken" in str(failure.value)
    assert "out of patience" in str(failure.value)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("dies", [False, True])
def test_no_process_is_left_behind_even_if_a_descendant_ignores_the_end(
    tmp_path: Path, dies: bool
) -> None:
    program = f"""
    import os, subprocess, sys, time
    from pathlib import Path
    from benchmarks.protocol import serve
    program = "import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    Path({str(tmp_path)!r}, "pids").write_text(f"{{os.getpid()}} {{child.pid}}")
    def work(steps):
        if {dies}:
            raise RuntimeError("told to die")
        time.sleep(0.01 * steps)
        return steps
    serve(work)
    """
    contender = fake("parent", program)
    if dies:
        with pytest.raises(ContenderFailed, match="told to die"):
            alternate([contender], rounds=1, turn_seconds=0.1)
    else:
        alternate([contender], rounds=1, turn_seconds=0.1)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_the_environment_of_a_developer_does_not_reach_contenders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    environment = harness.clean_environment({"OMP_NUM_THREADS": "3"})
    assert "TF_ENABLE_ONEDNN_OPTS" not in environment
    assert environment["OMP_NUM_THREADS"] == "3"


def test_quartiles_of_five_values_and_of_one() -> None:
    assert quartiles([5, 1, 4, 2, 3]) == Quartiles(2, 3, 4)
    assert quartiles([7]) == Quartiles(7, 7, 7)


def test_a_ratio_is_the_median_of_ratios_within_rounds() -> None:
    ours, theirs = measured("ours", [200, 20, 300]), measured("theirs", [100, 10, 100])
    assert ratio(ours, theirs) == Quartiles(2, 2, 2.5)
    assert [row.ratio.median for row in rows({"ours": ours, "theirs": theirs}, "theirs")] == [2, 1]


@pytest.mark.parametrize(
    ("comparison", "value", "reached"),
    [
        (">=", 1.15, True),
        (">=", 1.16, False),
        ("<", 1.15, False),
        ("<", 1.16, True),
        ("<=", 1.15, True),
        ("<=", 1.14, False),
    ],
)
def test_a_target_is_judged_by_the_median(comparison: str, value: float, reached: bool) -> None:
    target = Target(comparison, value)  # type: ignore[arg-type]
    assert Figure("speed", Quartiles(0, 1.15, 9), "x", target).reached is reached


def test_the_report_shows_and_saves_target_and_measured_value(tmp_path: Path) -> None:
    both = {"ours": measured("ours", [230.0]), "theirs": measured("theirs", [200.0])}
    figure = Figure("ours to theirs", ratio(both["ours"], both["theirs"]), "x", Target(">=", 1.2))
    result = SuiteResult("a suite", [figure], ["a note"], "theirs", rows(both, "theirs"))
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    report.show(result, console)
    text = console.export_text()
    assert all(
        part in text for part in ("a suite", "a note", "1.15", ">= 1.2 x", "no", "times theirs")
    )
    console.print(report.target_table({"speed": result, "again": result}))
    targets = console.export_text().splitlines()
    assert sum("ours to theirs" in line for line in targets) == 2
    report.save(tmp_path / "bench.json", {"cores": 2}, {"suite": report.to_json(result)})
    saved = json.loads((tmp_path / "bench.json").read_text())
    assert saved["suites"]["suite"]["figures"][0]["reached"] is False
    assert saved["suites"]["suite"]["rows"][0]["turns"] == [
        {"images": 230.0, "wall_s": 1.0, "cpu_s": 2.0}
    ]


def test_every_suite_of_the_table_can_be_loaded_and_an_unknown_one_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert all(callable(load(name)) for name in SUITES)
    with pytest.raises(SystemExit):
        parse(["resnet21"])
    assert "resnet20" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("depth", "parameters_of_paper_m", "mega"), [(20, 0.27, 40.6), (56, 0.85, 125.5)]
)
def test_multiply_adds_of_the_resnets(
    depth: int, parameters_of_paper_m: float, mega: float
) -> None:
    weights = sum(p.kernel**2 * p.channels_in * p.channels_out for p in resnet_products(depth))
    assert weights / 1e6 == pytest.approx(parameters_of_paper_m, abs=0.005)
    assert forward_multiply_adds(depth) / 1e6 == pytest.approx(mega, abs=0.1)
    assert training_flops(depth) == 6 * forward_multiply_adds(depth)


def test_without_cifar10_files_of_the_same_format_are_made_and_said_to_be_random(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_CIFAR10", str(tmp_path))
    with cifar10_folder() as (folder, note):
        pictures, labels = load_training_images(folder)
        assert pictures.shape == (50_000, 32, 32, 3)
        assert labels.min() == 0
        assert labels.max() == 9
        assert "random" in note
    assert not Path(folder).exists()


def test_a_contender_whose_turns_do_not_grow_with_its_steps_is_refused() -> None:
    with pytest.raises(ContenderFailed, match="contender cheat"):
        alternate([fake("cheat", SERVE + "serve(lambda steps: steps)")], rounds=1, turn_seconds=1)


def test_without_real_pictures_jpegs_are_drawn_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_PICTURES", str(tmp_path))
    with picture_folder(12) as (folder, note):
        assert "12 generated ones" in note
        found = sorted(Path(folder, "train").rglob("*.jpg"))
        assert len(found) == 12
        assert all(path.read_bytes().startswith(b"\xff\xd8\xff") for path in found)
        assert 20_000 < sum(path.stat().st_size for path in found) / 12 < 200_000
    assert not Path(folder).exists()


def test_pictures_given_are_taken_in_turn_and_again_and_converting_counts_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    originals = draw_pictures(tmp_path / "imagenet-samples", 3)
    (tmp_path / "imagenette-mini").mkdir()
    (tmp_path / "imagenette-mini" / "a.JPEG").write_bytes(originals[0].read_bytes())
    monkeypatch.setenv("PACELINE_PICTURES", str(tmp_path))
    with picture_folder(20) as (folder, note):
        assert "3 of imagenet-samples and 1 of imagenette-mini" in note
        links = sorted(Path(folder, "train").rglob("*.jpg"), key=lambda path: path.name)
        assert [link.resolve().name for link in links[:6]] == [
            "00000.jpg",
            "a.JPEG",
            "00001.jpg",
            "a.JPEG",
            "00002.jpg",
            "a.JPEG",
        ]
        contenders = [
            Contender(kind, (sys.executable, "-m", "benchmarks.contender_convert", kind, folder))
            for kind in ("paceline", "pil")
        ]
        results = alternate(contenders, rounds=1, turn_seconds=0.01)
    assert [each.turns[0].images / each.steps_per_turn for each in results.values()] == [30, 30]
    assert results["paceline"].turns[0].cpu_s > 0


def test_the_shards_of_the_index_suite_have_as_many_records_as_said(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", 3000)
    assert make(str(tmp_path / "shards"))["records"] == 3000 + SHARDS["validation"]
