"""A run's model, for pictures that nobody prepared: bytes of files in, probabilities out.

It needs the run folder alone (config.json and one checkpoint), not the data. JPEG and PNG are decoded by TensorFlow, as in training;
whatever else Pillow can read is turned into PNG first. Only the functions import TensorFlow, after its settings were made.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from paceline.config.experiment import Experiment
from paceline.core.state import State, evaluated_vector
from paceline.errors import UserError
from paceline.run_folder.folder import RunFolder, existing_run
from paceline.worker import devices

if TYPE_CHECKING:
    from paceline.core.flat import Template
    from paceline.data.batches import Shape

MAX_PIXELS = 90_000_000
"""A larger picture is refused: decoded, it would take gigabytes."""
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Trained:
    """A model with the weights that are evaluated, and what there is to know of it."""

    experiment: Experiment
    classes: tuple[str, ...]
    """A name for each output."""
    stored_shape: Shape | None
    """Of the pictures of the source; None where they are encoded, in any size."""
    image_shape: Shape
    """What the model sees."""
    template: Template
    state: State

    @property
    def params(self) -> np.ndarray:
        return evaluated(self.state)

    @property
    def stats(self) -> np.ndarray:
        return self.state.vectors["stats"]


def evaluated(state: State) -> np.ndarray:
    """The parameters that are evaluated: their moving average where the experiment has one."""
    return state.vectors[evaluated_vector(state.vectors)]


def output_names(classes: Sequence[str], num_outputs: int) -> tuple[str, ...]:
    """The classes of the data, and numbers for outputs beyond them."""
    return (*classes, *(str(number) for number in range(len(classes), num_outputs)))


class Predictor:
    """`predict` may be called from several threads at a time."""

    def __init__(self, trained: Trained) -> None:
        import tensorflow as tf

        from paceline.core.replica import choose_eval_batch_size

        self.classes, self.step = trained.classes, trained.state.step
        self.batch_size = choose_eval_batch_size(trained.image_shape)
        self._outputs_are_logits = trained.experiment.model.outputs == "logits"
        self._prepare_any, self._prepare_fitting, self._classify = _build_functions(trained)
        height, width, _ = trained.stored_shape or (0, 0, 0)
        self._fitting_png = struct.pack(">II", width, height)
        self._weights = tf.constant(trained.params), tf.constant(trained.stats)

    def predict(self, encoded: Sequence[bytes]) -> np.ndarray:
        """Probabilities, float32 [n, classes], of pictures as files hold them; one that is no picture is an error."""
        probabilities, faults = self.predict_whole(encoded)
        for index, fault in faults.items():
            raise UserError(f"picture {index + 1} of {len(encoded)} {fault}")
        return probabilities

    def predict_whole(self, encoded: Sequence[bytes]) -> tuple[np.ndarray, dict[int, str]]:
        """Probabilities of all that are whole pictures, and by index what is wrong with the others, whose rows are not a number."""
        outputs = np.full((len(encoded), len(self.classes)), np.nan, np.float32)
        faults: dict[int, str] = {}
        for start in range(0, len(encoded), self.batch_size):
            indices, images = self._prepare_whole(
                start, encoded[start : start + self.batch_size], faults
            )
            if indices:
                outputs[indices] = self.outputs(images)
        return to_probabilities(outputs, self._outputs_are_logits), faults

    def outputs(self, images: Any) -> np.ndarray:
        """Of at most `batch_size` prepared pictures, in a batch of the same shape as in training's own evaluation: what the model says."""
        import tensorflow as tf

        count = int(images.shape[0])
        if count < self.batch_size:
            images = tf.pad(images, [[0, self.batch_size - count], [0, 0], [0, 0], [0, 0]])
        return self._classify(*self._weights, images).numpy()[:count]

    def _prepare_whole(
        self, start: int, encoded: Sequence[bytes], faults: dict[int, str]
    ) -> tuple[list[int], Any]:
        """Most batches are sound and prepared as one; only one that is not is looked at picture by picture."""
        import tensorflow as tf

        sound: dict[int, bytes] = {}
        for index, data in enumerate(encoded, start):
            try:
                sound[index] = as_jpeg_or_png(data)
            except ValueError as error:
                faults[index] = str(error)
        if not sound:
            return [], None
        try:
            return list(sound), self._prepare(list(sound.values()))
        except tf.errors.InvalidArgumentError:
            for index, data in list(sound.items()):
                try:
                    sound[index] = self._decodable(data)
                except ValueError as error:
                    faults[index] = str(error)
                    del sound[index]
            return list(sound), self._prepare(list(sound.values())) if sound else None

    def _prepare(self, encoded: list[bytes]) -> Any:
        """JPEGs and PNGs as the model sees them. Pictures of the right size are often all there is, as in a test set, and soon done."""
        import tensorflow as tf

        fitting = all(
            data.startswith(_PNG) and data[16:24] == self._fitting_png for data in encoded
        )
        return (self._prepare_fitting if fitting else self._prepare_any)(tf.constant(encoded))

    def _decodable(self, data: bytes) -> bytes:
        import tensorflow as tf

        try:
            self._prepare([data])
            return data
        except tf.errors.InvalidArgumentError:
            return _to_png(data)


def load_predictor(run: str | Path, checkpoint: str = "best") -> Predictor:
    """The model of a run, from its best or last checkpoint or that of a step; `best` is the last where none was chosen by a
    validation split. TensorFlow's settings are made as in training, where it was not used in this process before."""
    from PIL import Image

    warnings.filterwarnings(
        "ignore", category=Image.DecompressionBombWarning
    )  # such pictures are refused in our own words
    return Predictor(load_trained(existing_run(run), checkpoint))


def load_trained(
    run: RunFolder, checkpoint: str = "best", precision: Literal["", "float32"] = ""
) -> Trained:
    """The model of a run, in its own precision or another, and its weights; reads nothing but the run folder, unless an old version
    wrote it."""
    experiment, facts = run.experiment(), run.data_facts()
    experiment = replace(experiment, precision=precision or experiment.precision)
    if not facts.get("classes"):
        raise UserError(
            f"{run.path} is damaged: its config.json names no classes; restore it from a copy"
        )
    devices.configure_inference(experiment)
    from paceline.core.flat import build_template
    from paceline.core.replica import build_layout
    from paceline.data.batches import model_shape
    from paceline.models import build_model
    from paceline.run_folder.checkpoint import Checkpoints

    stored = _stored_shape(experiment, facts)
    shape, names = model_shape(experiment.data, stored), facts["classes"]
    num_classes = experiment.model.num_classes or len(names)
    template = build_template(build_model(experiment, shape, num_classes))
    state = Checkpoints(run.checkpoints, build_layout(experiment, template)).choose(checkpoint)
    return Trained(experiment, output_names(names, num_classes), stored, shape, template, state)


def as_jpeg_or_png(data: bytes) -> bytes:
    """The same bytes, or a PNG of what else Pillow can read; ValueError says why it is no picture that can be predicted. Of JPEG and
    PNG it looks at the first bytes only."""
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise ValueError("is empty")
    if data.startswith(_PNG) and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])  # quicker than Pillow
    else:
        try:
            with Image.open(io.BytesIO(data)) as picture:
                width, height = picture.size
        except UnidentifiedImageError:
            raise ValueError("is not a picture") from None
        except (
            Exception
        ) as error:  # damaged bytes can raise anything; Pillow has its own limit of pixels, too
            raise ValueError(f"cannot be decoded: {_first_line(error)}") from None
    if width * height > MAX_PIXELS:
        raise ValueError(
            f"has {width * height / 1e6:,.0f} megapixels; {MAX_PIXELS / 1e6:.0f} is the most: make it smaller"
        )
    return data if data.startswith((b"\xff\xd8\xff", _PNG)) else _to_png(data)


def to_probabilities(outputs: np.ndarray, are_logits: bool) -> np.ndarray:
    """float32; the same for a row whatever batch it stands in."""
    if not are_logits:
        return outputs
    powers = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def _build_functions(
    trained: Trained,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Prepare any pictures; prepare those of the stored shape; classify what is prepared."""
    import tensorflow as tf

    from paceline.core.tree import opaque
    from paceline.data.batches import prepare_encoded

    def build_prepare(fitting: bool) -> Callable[..., Any]:
        def prepare(encoded: tf.Tensor) -> tf.Tensor:
            return prepare_encoded(trained.experiment.data, trained.stored_shape, encoded, fitting)

        return tf.function(
            prepare, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)]
        )

    def classify(params: tf.Tensor, stats: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
        return trained.template.call(params, stats, images, training=False)[0]

    return build_prepare(False), build_prepare(True), opaque(classify)


def _stored_shape(experiment: Experiment, facts: dict[str, Any]) -> Shape | None:
    if "image_shape" in facts:
        shape = facts["image_shape"] and tuple(facts["image_shape"])
    else:  # a run of before it was noted
        from paceline.data import build_source

        shape = build_source(experiment.data).image_shape
    if shape and shape[2] not in (1, 3):
        raise UserError(
            f"the run's pictures have {shape[2]} channels; files can be predicted for models of 1 or 3"
        )
    return shape or None


def _to_png(data: bytes) -> bytes:
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data)) as picture:
            upright, file = ImageOps.exif_transpose(picture), io.BytesIO()
            if upright.mode.startswith("I;16"):  # Pillow would cut off what is above 255
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            upright.convert("RGB").save(file, "PNG", compress_level=1)
    except Exception as error:  # damaged bytes can raise anything
        raise ValueError(f"cannot be decoded: {_first_line(error)}") from None
    return file.getvalue()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
