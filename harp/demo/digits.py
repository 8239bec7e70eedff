# SPDX-License-Identifier: Apache-2.0
"""Data set of the demo: synthetic digits of 8 x 8 gray values, drawn from a seed.

Each image is a digit drawn as strokes, distorted by a random affine map, with random pen width,
blur and noise. Accuracies on it show that training works; they do not compare with published
results on handwritten digits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SIDE = 8  # pixels
TRAIN, TEST = 1440, 480  # images
SEED = 20240607

# Strokes of each digit: polylines in a unit square, y downward.
_STROKES: tuple[tuple[tuple[tuple[float, float], ...], ...], ...] = (
    (((0.3, 0.1), (0.7, 0.1), (0.8, 0.5), (0.7, 0.9), (0.3, 0.9), (0.2, 0.5), (0.3, 0.1)),),
    (((0.3, 0.3), (0.55, 0.1), (0.55, 0.9)),),
    (((0.2, 0.3), (0.4, 0.1), (0.7, 0.15), (0.75, 0.4), (0.2, 0.9), (0.8, 0.9)),),
    (((0.2, 0.1), (0.75, 0.15), (0.45, 0.45), (0.8, 0.65), (0.6, 0.9), (0.2, 0.85)),),
    (((0.6, 0.9), (0.6, 0.1), (0.15, 0.65), (0.85, 0.65)),),
    (((0.8, 0.1), (0.3, 0.1), (0.25, 0.45), (0.7, 0.45), (0.75, 0.75), (0.5, 0.9), (0.2, 0.85)),),
    (((0.7, 0.1), (0.3, 0.4), (0.25, 0.75), (0.5, 0.9), (0.75, 0.7), (0.55, 0.5), (0.3, 0.6)),),
    (((0.2, 0.1), (0.8, 0.1), (0.4, 0.9)), ((0.35, 0.5), (0.75, 0.5))),
    (
        ((0.5, 0.1), (0.75, 0.3), (0.25, 0.65), (0.5, 0.9), (0.75, 0.7), (0.3, 0.3), (0.5, 0.1)),
    ),
    (((0.75, 0.35), (0.45, 0.5), (0.25, 0.3), (0.5, 0.1), (0.75, 0.3), (0.65, 0.9)),),
)  # fmt: skip


@dataclass(frozen=True)
class Digits:
    """Images with gray values from 0 to 1, one image a row, and their labels from 0 to 9."""

    train_images: Floats
    train_labels: Ints
    test_images: Floats
    test_labels: Ints


def _segments(digit: int) -> NDArray[np.float64]:
    """Segments of a digit's strokes: (count, 2 ends, 2 coordinates), centered on the origin."""
    pairs = [
        (stroke[index], stroke[index + 1])
        for stroke in _STROKES[digit]
        for index in range(len(stroke) - 1)
    ]
    return np.array(pairs) - 0.5


def _draw(digit: int, random: np.random.Generator) -> Floats:
    """Return a distorted image as a row of SIDE * SIDE gray values."""
    angle, shear = random.uniform(-0.35, 0.35), random.uniform(-0.3, 0.3)
    scale = random.uniform(0.65, 1.0, 2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    transform = rotation @ np.array([[1, shear], [0, 1]]) @ np.diag(scale)
    ends = _segments(digit) @ transform.T + random.uniform(0.4, 0.6, 2)
    ends += random.normal(0, 0.025, ends.shape)
    start, along = ends[:, 0], ends[:, 1] - ends[:, 0]
    centers = (np.arange(SIDE) + 0.5) / SIDE
    pixels = np.stack(np.meshgrid(centers, centers), axis=-1).reshape(-1, 1, 2)
    # The nearest point of each segment, as a share of its length.
    share = ((pixels - start) * along).sum(axis=2) / (along**2).sum(axis=1)
    nearest = start + np.clip(share, 0, 1)[..., None] * along
    distance = np.sqrt(((pixels - nearest) ** 2).sum(axis=2)).min(axis=1)
    gray = np.exp(-((distance / random.uniform(0.05, 0.1)) ** 2))
    noisy = gray + random.normal(0, 0.08, gray.shape)
    image: Floats = np.clip(noisy, 0, 1).astype(np.float32)
    return image


def make_digits() -> Digits:
    """Return the data set: the same on every host with the same numpy, since SEED decides
    everything.
    """
    random = np.random.default_rng(SEED)
    labels = np.arange(TRAIN + TEST, dtype=np.int64) % 10
    random.shuffle(labels)
    images = np.stack([_draw(int(label), random) for label in labels])
    return Digits(images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:])
