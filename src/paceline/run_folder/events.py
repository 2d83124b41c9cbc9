"""TensorBoard's event files, which the chief writes without TensorFlow: scalars and settings."""

import re
import time
from pathlib import Path
from typing import Any

from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json, flatten
from paceline.maths.metrics import BlockResult, EvalResult
from paceline.storage.files import explained

_HPARAM_KINDS = {bool: "bool_value", int: "number_value", float: "number_value"}


class TensorBoard:
    """An action that writes event files. It makes no file before the first call.

    Training starts or continues at `first_step`: earlier events after it are hidden, because their
    steps are computed again. `number` is that of the file; by default it is the next one.
    """

    def __init__(self, events_dir: str | Path, first_step: int = 0, number: int = 0) -> None:
        self._folder = Path(events_dir)
        self._number = number
        self._first_step = first_step
        self._writer: Any = None

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        whole = {"images_per_second": block.images_per_second, "epoch": block.epoch, **block.more}
        for step, values in [*block.each_step(), (block.step, whole)]:
            self.scalars(step, values)
        if evaluation:
            self.scalars(block.step, evaluation.scalars())

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Show numbers of a step."""
        self.write(step, *({"tag": name, "simple_value": float(v)} for name, v in values.items()))

    def write(self, step: int, *values: Json) -> None:
        """Write values of a step, as TensorBoard's summaries have them."""
        self._write(step=step, summary={"value": list(values)})

    def settings(self, experiment: Experiment) -> None:
        """Write every field of the experiment, for the table that compares runs."""
        # tensorboard's own hparams_pb imports all that its stub of TensorFlow needs, boto3 too.
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        plugin = HParamsPluginData()
        plugin.session_start_info.group_name = experiment.digest()
        plugin.session_start_info.start_time_secs = time.time()
        for name, value in flatten(experiment.to_json()).items():
            kind = _HPARAM_KINDS.get(type(value), "string_value")
            plain = value if type(value) in _HPARAM_KINDS else str(value)
            setattr(plugin.session_start_info.hparams[name], kind, plain)
        data = {"plugin_name": "hparams", "content": plugin.SerializeToString()}
        tag = "_hparams_/session_start_info"
        self.write(self._first_step, {"tag": tag, "metadata": {"plugin_data": data}})

    def close(self) -> None:
        """Close the event file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with explained("write", self._folder):
                writer.close()

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        with explained("write", self._folder):
            if self._writer is None:
                self._writer = self._open()
                self._write(file_version="brain.Event:2")
                # START also hides the events of its own step. Those of `first_step` stay visible;
                # at step 0 there are none.
                hidden_from = self._first_step + 1 if self._first_step else 0
                self._write(step=hidden_from, session_log=SessionLog(status=SessionLog.START))
            self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
            self._writer.flush()

    def _open(self) -> Any:
        # tensorboard's own EventFileWriter opens its file with TensorFlow.
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names. They have numbers, because the
        # clocks of two hosts may disagree which file is the later one. The chief's is the number of
        # its lease, so that two chiefs never write the same file.
        names = (path.name for path in self._folder.glob("events.out.tfevents.*"))
        found = (re.fullmatch(r"events\.out\.tfevents\.(\d+)", name) for name in names)
        last = max((int(match[1]) for match in found if match), default=0)
        number = max(self._number, last + 1)
        return RecordWriter(open(self._folder / f"events.out.tfevents.{number:010d}", "xb"))
