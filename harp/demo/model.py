# SPDX-License-Identifier: Apache-2.0
"""A small neural network in numpy and its synthetic images; all arithmetic in float32.

Weights and gradients are one flat vector each, for the all-reduce; the layers are views of it.
Training is deterministic: the seed determines the batches and initial weights on every host.
`python -m harp.demo.model EPOCHS SHARDS FILE` trains in a single process, with as many threads as a
rank has.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SEED = 20240607
TRAIN, TEST = 1440, 480  # images
NOISE = 0.6  # standard deviation; the gray values of a pattern are 0 to 1
LAYERS = (64, 256, 256, 10)
BATCH = 96  # divisible among 2, 3 and 4 hosts
LEARNING_RATE = np.float32(0.05)
MOMENTUM = np.float32(0.9)


@dataclass(frozen=True)
class Data:
    """Images, one in each row, and the numbers of their classes."""

    train_images: Floats
    train_labels: Ints
    test_images: Floats
    test_labels: Ints


def make_data() -> Data:
    """Return noisy copies of one random pattern for each class. They depend on numpy's version."""
    random = np.random.default_rng(SEED)
    pixels, classes = LAYERS[0], LAYERS[-1]
    labels = np.arange(TRAIN + TEST, dtype=np.int64) % classes
    random.shuffle(labels)
    patterns = random.random((classes, pixels))
    noise = random.normal(0, NOISE, (TRAIN + TEST, pixels))
    images: Floats = (patterns[labels] + noise).astype(np.float32)
    return Data(images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:])


def batches(count: int, epoch: int) -> Iterator[Ints]:
    """Yield the indices of each full batch of an epoch; the epoch's number seeds the shuffle."""
    order = np.random.default_rng(SEED + 1 + epoch).permutation(count)
    for start in range(0, count - BATCH + 1, BATCH):
        yield order[start : start + BATCH]


def shard(batch: Ints, rank: int, ranks: int) -> Ints:
    """Return the part of a batch that one rank computes."""
    size = len(batch) // ranks
    return batch[rank * size : (rank + 1) * size]


class Model:
    """Fully connected layers with ReLU, softmax cross-entropy, SGD with momentum."""

    def __init__(self) -> None:
        pairs = list(pairwise(LAYERS))
        self.weights = np.zeros(sum(n * m + m for n, m in pairs), np.float32)
        self._velocity = np.zeros_like(self.weights)
        random = np.random.default_rng(SEED)
        for matrix, _bias in self._layers(self.weights):
            scale = np.sqrt(2.0 / matrix.shape[0])
            matrix[:] = (random.standard_normal(matrix.shape) * scale).astype(np.float32)

    @staticmethod
    def _layers(flat: Floats) -> list[tuple[Floats, Floats]]:
        layers, at = [], 0
        for n, m in pairwise(LAYERS):
            matrix = flat[at : at + n * m].reshape(n, m)
            bias = flat[at + n * m : at + n * m + m]
            layers.append((matrix, bias))
            at += n * m + m
        return layers

    def _forward(self, images: Floats) -> list[Floats]:
        activations = [images]
        layers = self._layers(self.weights)
        for index, (matrix, bias) in enumerate(layers):
            out = activations[-1] @ matrix + bias
            activations.append(out if index == len(layers) - 1 else np.maximum(out, np.float32(0)))
        return activations

    def gradient(self, images: Floats, labels: Ints, out: Floats) -> None:
        """Write this shard's part of the batch's mean gradient to out, and its part of the loss to
        the additional last element. The sum over all shards is the gradient of the batch.
        """
        activations = self._forward(images)
        scores = activations[-1] - activations[-1].max(axis=1, keepdims=True)
        exponent = np.exp(scores)
        total = exponent.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = (np.log(total[:, 0]) - scores[rows, labels]).sum()
        delta = exponent / total
        delta[rows, labels] -= 1
        delta /= np.float32(BATCH)
        layers = self._layers(self.weights)
        for index in range(len(layers) - 1, -1, -1):
            matrix, bias = self._layers(out)[index]
            matrix[:] = activations[index].T @ delta
            bias[:] = delta.sum(axis=0)
            if index > 0:
                delta = (delta @ layers[index][0].T) * (activations[index] > 0)
        out[-1] = loss / np.float32(BATCH)

    def step(self, gradient: Floats) -> None:
        self._velocity *= MOMENTUM
        self._velocity -= LEARNING_RATE * gradient
        self.weights += self._velocity

    def accuracy(self, images: Floats, labels: Ints) -> float:
        return float((self._forward(images)[-1].argmax(axis=1) == labels).mean())


def train_alone(epochs: int, shards: int) -> Floats:
    """Train in one process; return the weights. The gradients of the shards of each batch are
    added in rank order. For two shards, the ring computes exactly the same sums.
    """
    data, model = make_data(), Model()
    gradient = np.zeros(len(model.weights) + 1, np.float32)
    part = np.zeros_like(gradient)
    for epoch in range(epochs):
        for batch in batches(len(data.train_images), epoch):
            for index in range(shards):
                mine = shard(batch, index, shards)
                model.gradient(data.train_images[mine], data.train_labels[mine], part)
                if index == 0:
                    gradient[:] = part  # 0 + -0.0 would be 0.0
                else:
                    gradient += part
            model.step(gradient[:-1])
    return model.weights


if __name__ == "__main__":
    np.save(sys.argv[3], train_alone(int(sys.argv[1]), int(sys.argv[2])))
