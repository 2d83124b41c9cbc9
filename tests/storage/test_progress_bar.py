import pytest

from paceline.storage import progress_bar


@pytest.mark.parametrize(("patience_s", "is_shown"), [(3600.0, False), (0.0, True)])
def test_the_bar_appears_only_if_the_work_takes_long(
    patience_s: float,
    is_shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress_bar, "PATIENCE_S", patience_s)
    with progress_bar.late_bar("reading", total=4) as advance:
        advance(1)
        advance(3)
    shown = capsys.readouterr()
    assert ("reading" in shown.err, "100%" in shown.err) == (is_shown, is_shown)
    assert not shown.out
