"""A built-in data set: ten classes of 32 x 32 color images, drawn by the program. No download.

Each image has one shape of random place, size, rotation and color on an uneven background, with
clutter beneath and above it and noise over all. The bytes are the same everywhere: only raw PCG64
bits and + - x / sqrt floor are used, which have one result on every machine. Images are drawn in
chunks with a seed of their own: an image depends on its split and number, not on how many images
are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from paceline.experiment.experiment import Data

if TYPE_CHECKING:
    from paceline.data.source import Source

TRAIN_SIZE, TEST_SIZE = 20_000, 4_000
SIDE, CHUNK = 32, 200
SEED = 151_203_385

# How difficult it is: pixels from center to edge, the color's distance from the background,
# clutter, and the strongest noise.
RADIUS, CONTRAST = (6, 12.5), (72, 184)
SPECKS_BELOW, SPECKS_ABOVE = 3, 2
NOISE = (10, 50)

Array = npt.NDArray[Any]
Field = npt.NDArray[Any]
"""float32 [n, 32, 32]: a value for each pixel of n images."""


def build_shapes(data: Data) -> Source:
    """Return the source of drawn shapes, with the sizes of `data` or its own."""
    from paceline.data.source import Source, in_memory

    train = in_memory(*draw_shapes(0, data.train_size or TRAIN_SIZE))
    test = in_memory(*draw_shapes(1, data.test_size or TEST_SIZE))
    return Source(train, test, CLASSES, (SIDE, SIDE, 3))


def draw_shapes(split: int, size: int) -> tuple[Array, Array]:
    """Return the first images, uint8 [size, 32, 32, 3], and labels; split 0 is train, 1 test."""
    images = np.empty((size, SIDE, SIDE, 3), np.uint8)
    for start in range(0, size, CHUNK):
        images[start : start + CHUNK] = _draw_chunk(split, start // CHUNK)[: size - start]
    return images, np.arange(size, dtype=np.int32) % len(CLASSES)


class _Bits:
    """Random numbers from raw bits: NumPy may change those of its Generator."""

    def __init__(self, split: int, chunk: int):
        self._raw = np.random.PCG64(np.random.SeedSequence([SEED, split, chunk]))

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        """Return float32 [CHUNK, *shape], uniform in [low, high)."""
        words = self._raw.random_raw((CHUNK, *shape)) >> np.uint64(40)
        return words.astype(np.float32) * np.float32((high - low) / 2**24) + np.float32(low)

    def noise(self) -> Array:
        """Return int8 [CHUNK, 3, 32, 32], uniform."""
        return self._raw.random_raw((CHUNK, 3, SIDE, SIDE // 8)).astype("<u8").view(np.int8)

    def direction(self) -> tuple[Array, Array]:
        """Return cosine and sine of a random angle, with the same bits on every machine."""
        t = self.uniform(-1, 1)
        sign = np.where(self.uniform(0, 1) < 0.5, np.float32(1), np.float32(-1))
        return sign * (1 - t * t) / (1 + t * t), sign * 2 * t / (1 + t * t)


def _draw_chunk(split: int, chunk: int) -> Array:
    bits = _Bits(split, chunk)
    ground = bits.uniform(0, 256, 3)
    image = _background(bits, ground)
    for _ in range(SPECKS_BELOW):
        _paint(image, _speck(bits), bits.uniform(0, 256, 3))
    # Half the range away, modulo 256: the color differs from the background, and brighter or
    # darker says nothing about the class.
    color = ground + bits.uniform(*CONTRAST, 3)
    _paint(image, _shape(bits), np.where(color >= 256, color - 256, color))
    for _ in range(SPECKS_ABOVE):
        _paint(image, _speck(bits), bits.uniform(0, 256, 3))
    image += bits.noise() * (bits.uniform(*NOISE) / 128)[:, None, None, None]
    return np.clip(image, 0, 255, out=image).astype(np.uint8).transpose(0, 2, 3, 1)


def _background(bits: _Bits, ground: Array) -> Array:
    """Draw two similar colors in soft waves, with a coarse pattern of brightness."""
    across, down = bits.direction()
    length = bits.uniform(0.02, 0.12)
    waves = _wave(_plane(across * length, down * length, bits.uniform(0, 1)))
    coarse = bits.uniform(-24, 24, 8, 8).repeat(4, axis=1).repeat(4, axis=2)
    image = bits.uniform(-70, 70, 3)[..., None, None] * waves[:, None]
    return image + coarse[:, None] + ground[..., None, None]


def _speck(bits: _Bits) -> Field:
    """Return the coverage of a small bar or block at any place and angle."""
    across, down = bits.direction()
    x, y = bits.uniform(0, SIDE), bits.uniform(0, SIDE)
    long, wide = bits.uniform(1, 6)[:, None, None], bits.uniform(0.5, 1.8)[:, None, None]
    u = np.abs(_plane(across, down, -across * x - down * y)) - long
    return _coverage(np.maximum(u, np.abs(_plane(-down, across, down * x - across * y)) - wide))


def _shape(bits: _Bits) -> Field:
    """Return the coverage of each shape. An image's number modulo 10 is its class."""
    across, down = bits.direction()
    radius = bits.uniform(*RADIUS)
    x, y = (radius * 0.8 + bits.uniform(0, 1) * (SIDE - 1 - radius * 1.6) for _ in range(2))
    squeeze = bits.uniform(0.8, 1.25)
    u = _plane(across / radius, down / radius, -(across * x + down * y) / radius)
    back = down * x - across * y
    v = _plane(*(each / radius * squeeze for each in (-down, across, back)))
    distance = np.empty_like(u)
    for label, form in enumerate(FORMS.values()):
        distance[label :: len(FORMS)] = form(u[label :: len(FORMS)], v[label :: len(FORMS)])
    return _coverage(distance * radius[:, None, None])


def _plane(across: Array, down: Array, offset: Array) -> Field:
    """Return across * x + down * y + offset at each pixel."""
    pixels = np.arange(SIDE, dtype=np.float32)
    columns, rows = across[:, None] * pixels, down[:, None] * pixels + offset[:, None]
    return columns[:, None, :] + rows[:, :, None]


def _coverage(distance: Field) -> Field:
    """Return the share of each pixel that is inside, from its distance to the edge."""
    return np.clip(np.float32(0.5) - distance, 0, 1)


def _paint(image: Array, coverage: Field, color: Array) -> None:
    """Blend a color into float32 [n, 3, 32, 32]: channels first, where NumPy's loops are long."""
    step = color[..., None, None] - image
    step *= coverage[:, None]
    image += step


def _wave(turns: Field) -> Field:
    """Return a triangle wave: 0 at whole numbers, 1 between them."""
    between: Field = np.abs(2 * (turns - np.floor(turns)) - 1)
    return 1 - between


# The forms: how far outside its edge a point (u, v) is, for a shape of radius 1 around 0.


def _round(u: Field, v: Field) -> Field:
    distance: Field = np.sqrt(u * u + v * v)
    return distance


def _box(u: Field, v: Field) -> Field:
    return np.maximum(np.abs(u), np.abs(v))


def _star(u: Field, v: Field) -> Field:
    """Five points: a pixel is inside if at most one of five half-planes excludes it."""
    sides = ((0.0, 1.0), (0.951, 0.309), (0.588, -0.809), (-0.588, -0.809), (-0.951, 0.309))
    first = second = np.full_like(u, -2)
    for a, b in sides:
        value = a * u + b * v
        second = np.maximum(second, np.minimum(first, value))
        first = np.maximum(first, value)
    return second - 0.38


def _checkered(u: Field, v: Field) -> Field:
    a, b = _wave(1.1 * u + 0.25) - 0.5, _wave(1.1 * v + 0.25) - 0.5
    return np.minimum(np.maximum(a, b), -np.minimum(a, b)) / 2.2


FORMS: dict[str, Callable[[Field, Field], Field]] = {
    "disc": lambda u, v: _round(u, v) - 0.85,
    "ring": lambda u, v: np.abs(_round(u, v) - 0.72) - 0.2,
    "square": lambda u, v: _box(u, v) - 0.75,
    "frame": lambda u, v: np.abs(_box(u, v) - 0.65) - 0.17,
    "triangle": lambda u, v: np.maximum(0.866 * np.abs(u) + 0.5 * v, -v) - 0.55,
    "cross": lambda u, v: np.maximum(np.minimum(abs(u), abs(v)) - 0.25, _box(u, v) - 0.95),
    "star": _star,
    "stripes": lambda u, v: np.maximum(_box(u, v) - 0.9, (_wave(1.65 * u + 0.5) - 0.5) / 3.3),
    "checker": lambda u, v: np.maximum(_box(u, v) - 0.9, _checkered(u, v)),
    "crescent": lambda u, v: np.maximum(_round(u, v) - 0.95, 0.75 - _round(u - 0.42, v)),
}
CLASSES = tuple(FORMS)
