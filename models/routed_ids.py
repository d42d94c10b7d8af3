"""Recorded top-k ids: a numpy file of logical expert ids, one row per token."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError

import numpy as np

from models.deployment import Model
from models.errors import InputError
from models.topk_draw import Ids

# What numpy raises for headers that are cut, or that lie: they are parsed as Python literals.
_BROKEN = (OSError, ValueError, TypeError, OverflowError, MemoryError, RecursionError, TokenError)


class FewIds(InputError):
    """A file that holds the ids of fewer tokens than are asked for."""


def read_ids(path: str, num_tokens: int, model: Model) -> Ids:
    """The first `num_tokens` rows, int32[num_tokens, k], -1 for invalid; later rows are not read.

    FewIds for fewer rows, InputError for what is no `.npy` file of integers [tokens, k], or holds an id that the model has not.
    """
    ids = _mapped(path)
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        shape = ", ".join(map(str, ids.shape))
        raise _refusal(path, f"{ids.dtype}[{shape}]", "one integer array [tokens, k]")
    if ids.shape[0] < num_tokens or ids.shape[1] != model.top_k:
        kind = InputError if ids.shape[1] != model.top_k else FewIds
        allowed = f"[{num_tokens} or more, {model.top_k}]"
        raise kind(path, "routing.path", list(ids.shape), allowed)
    ids = np.array(ids[:num_tokens])
    if ids.size and (ids.min() < -1 or ids.max() >= model.n_routed_experts):
        extreme = int(ids.min()) if ids.min() < -1 else int(ids.max())
        raise _refusal(path, extreme, f"ids from -1 to {model.n_routed_experts - 1}")
    return ids.astype(np.int32)


def _mapped(path: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """The file's array, mapped into memory: a recording may be larger than that."""
    if not Path(path).is_file():
        raise _refusal(path, "no regular file", "a readable .npy file")
    try:
        with np.errstate(over="ignore"):
            return np.lib.format.open_memmap(path, mode="r")
    except _BROKEN as error:
        raise _refusal(path, str(error), "a readable .npy file") from error


def _refusal(path: str, found: object, allowed: str) -> InputError:
    return InputError(path, "routing.path", found, allowed)
