"""The undisturbed trainings to which `make chaos` compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos_checks import show
from chaos_clock import CLOCK
from chaos_scene import experiment_flags
from helpers import paceline


class Reference:
    """Undisturbed trainings, each computed once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shown: dict[tuple[str, bool], dict[str, Any]] = {}
        self.records = folder / "records"
        self._make_records()
        began = CLOCK.now()
        self.get("gradients", False)
        self.unit_s = CLOCK.now() - began

    def get(self, method: str, records: bool) -> dict[str, Any]:
        """Return what is shown of the training."""
        if (method, records) not in self._shown:
            name = f"{method}-{records}"
            flags = experiment_flags(method, self.records if records else None)
            ended = paceline(
                *("train", "smoke", "--run-dir", name, *flags), cwd=self._folder, timeout_s=1e6
            )
            assert ended.code == 0, ended
            self._shown[method, records] = show(str(self._folder / name), self._folder / "reader")
        return self._shown[method, records]

    def _make_records(self) -> None:
        """Write random pictures as TFRecords."""
        import numpy as np
        from PIL import Image

        chance = np.random.default_rng(0)
        for split, count in (("train", 272), ("val", 131)):
            for i in range(count):
                file = self._folder / "pictures" / split / f"class-{i % 3}" / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(chance.integers(0, 255, (16, 16, 3), np.uint8)).save(file)
        ended = paceline(
            *("data", "convert", "pictures", "records"), cwd=self._folder, timeout_s=1e6
        )
        assert ended.code == 0, ended
