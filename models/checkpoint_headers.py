"""Headers of safetensors files: names, types and shapes of tensors, without reading any tensor.

A file starts with the header's length (8 bytes, little endian) and the header (JSON). The reader checks
what it says against the file's size, because a header may be cut, or lie. What it refuses, the format's
own library refuses too, but for names that cannot be printed and names that are given twice.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import InputError

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_BITS = 2**64  # the library counts a tensor's bits in 64-bit numbers
_BITS: Mapping[str, int] = {
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


class TensorInfo(NamedTuple):
    """Type and shape of one stored tensor, and the file that holds it."""

    dtype: str
    shape: tuple[int, ...]
    file: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file. InputError names file and key when it is cut, lies or is no safetensors."""
    size = file_size(path)
    try:
        with path.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8:
                raise InputError(str(path), "header length", size, "8 bytes and a header")
            if length > min(size - 8, MAX_HEADER_BYTES):
                allowed = f"at most the {size - 8} bytes that follow, and {MAX_HEADER_BYTES}"
                raise InputError(str(path), "header length", length, allowed)
            text = stream.read(length)
    except OSError as error:
        raise InputError(str(path), "file", error.strerror, "a readable file") from error
    entries = _parse(path, text)
    data_bytes = size - 8 - length
    tensors = {name: _tensor(path, name, entry, data_bytes) for name, entry in entries.items()}
    _check_filled(path, entries, data_bytes)
    return tensors


def file_size(path: Path) -> int:
    """Bytes of a regular file. InputError for what is none: a pipe or a device would never end."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(str(path), "file", error.strerror, "a readable file") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(str(path), "file", stat.filemode(status.st_mode), "a regular file")
    return status.st_size


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    """The header's entries without its free text, which has to be a map of strings."""
    try:
        entries = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), "header", str(error), "a JSON object") from error
    if not isinstance(entries, dict):
        raise InputError(str(path), "header", type(entries).__name__, "a JSON object")
    notes = entries.pop("__metadata__", None) or {}
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise InputError(str(path), "__metadata__", notes, "an object of strings")
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice")
    return entries


def _tensor(path: Path, name: str, entry: Any, data_bytes: int) -> TensorInfo:
    if not name.isprintable():
        raise InputError(str(path), "header", name, "names of printable characters")
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise InputError(str(path), name, entry, "an object with dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise InputError(str(path), f"{name}.dtype", dtype, ", ".join(sorted(_BITS)))
    if not _is_sizes(shape):
        raise InputError(str(path), f"{name}.shape", shape, "a list of whole numbers from 0")
    if not _is_sizes(offsets) or len(offsets) != 2:
        raise InputError(str(path), f"{name}.data_offsets", offsets, "[begin, end]")
    begin, end = offsets
    if not begin <= end <= data_bytes:
        allowed = f"within the {data_bytes} bytes of data of the file"
        raise InputError(str(path), f"{name}.data_offsets", offsets, allowed)
    nbytes, odd_bits = divmod(prod(shape) * _BITS[dtype], 8)
    if odd_bits or max((*shape, prod(shape) * _BITS[dtype])) >= _MAX_BITS:
        allowed = f"sizes whose {dtype} fill whole bytes, in less than {_MAX_BITS} bits"
        raise InputError(str(path), f"{name}.shape", shape, allowed)
    if end - begin != nbytes:
        allowed = f"{nbytes} bytes for {dtype}{shape}"
        raise InputError(str(path), f"{name}.data_offsets", offsets, allowed)
    return TensorInfo(dtype, tuple(shape), path.name)


def _check_filled(path: Path, entries: Mapping[str, Any], data_bytes: int) -> None:
    """Tensors follow each other without hole or overlap up to the file's end."""
    filled = 0
    for begin, end, name in sorted(
        (*entry["data_offsets"], name) for name, entry in entries.items()
    ):
        if begin != filled:
            allowed = f"a begin of {filled}, where the tensor before it ends"
            raise InputError(str(path), f"{name}.data_offsets", [begin, end], allowed)
        filled = end
    if filled != data_bytes:
        allowed = f"the {filled} bytes of data that the header's tensors fill"
        raise InputError(str(path), "file", data_bytes, allowed)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
