"""What a loader does with the shared expert's tensors when they are renamed to one more routed expert.

The slot's parameters have the shapes of the routed experts' tensors. SGLang's loader takes the rank's
share along the sharded dimension (`narrow`, which fails if there is too little and cuts if there is too
much) and copies it (`copy_`, which broadcasts sizes of 1, converts types and fails on other shapes). A
name that is no parameter is only warned about, and a parameter that gets nothing keeps what was in
memory (0.5.23, `FusedMoE._load_w13`, `_load_w2` and the model's `load_weights`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from models.checkpoint_files import LayerTensors, TensorKey
from models.checkpoint_formats import Format, Stored
from models.checkpoint_headers import TensorInfo
from models.sglang_rules import Evidence

Effect = Literal["fits", "requantised", "refused", "garbage"]
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_CONVERTIBLE = (frozenset({"F32", "F16", "BF16"}), frozenset({"I8", "U8"}))  # the latter bit by bit


# What each rule means, and how it is known; `<family>.*` ids are those of the fusion rules.
RULES: Mapping[str, tuple[str, Evidence]] = {
    "slot.fits": ("the tensor has the slot's type and shape", "code"),
    "requant.fp8_to_mxfp4": ("block FP8 becomes MXFP4 when weight and scale are there", "code"),
    "requant.bf16_to_mxfp4": (
        "BF16 becomes MXFP4: Qwen3.5 under Quark on gfx95x, enforced",
        "code",
    ),
    "requant.incomplete": ("a part of the conversion's input is missing", "inferred"),
    "requant.shape": ("the conversion needs another shape, or whole blocks of 32", "code"),
    "requant.fused_gate_up": ("gate and up stored as one tensor are not converted", "code"),
    "loader.stops": ("the copy into the slot fails, so loading ends", "inferred"),
    "loader.cut": ("the loader takes the slot's part of a longer tensor", "inferred"),
    "loader.broadcast": ("the copy repeats a size of 1", "inferred"),
    "loader.cast": ("the copy converts numbers that mean something else", "inferred"),
    "loader.unwritten": ("a parameter of the slot gets no tensor", "code"),
    "loader.unmatched": ("a tensor's new name is no parameter; only a warning", "code"),
    "tp.divisible": ("a rank's share of the inner size is not whole in the format", "code"),
    "checkpoint.routed": ("the routed experts are not those of the config and the format", "code"),
    "checkpoint.shared": ("the layer stores no shared expert", "code"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says about one tensor; `tensor` is its name in the checkpoint."""

    rule: str
    effect: Effect
    tensor: str
    detail: str


def shared_name(layer: LayerTensors, key: TensorKey) -> str:
    """The stored name of a shared tensor, or the one that it would have."""
    return layer.names.get(key, f"{layer.block}.shared_experts.{key[0]}.{key[1]}")


def slot_findings(layer: LayerTensors, fmt: Format) -> Iterator[Finding]:
    """One finding for every tensor of the shared expert and for every parameter of the slot."""
    slot = layer.routed[min(layer.routed)]
    for key, want in sorted(slot.items()):
        have = layer.shared.get(key)
        name = shared_name(layer, key)
        if have is not None:
            yield _copied(fmt, key, name, want, have)
        elif not _is_optional(fmt, key):
            detail = f"the slot's {want} gets nothing and keeps what is in memory"
            yield Finding("loader.unwritten", "garbage", name, detail)
    for key, have in sorted(layer.shared.items()):
        if key not in slot:
            detail = f"{have} has no parameter; the loader only warns"
            yield Finding("loader.unmatched", "garbage", shared_name(layer, key), detail)


def _is_optional(fmt: Format, key: TensorKey) -> bool:
    stored = fmt.tensors.get(key[1])
    return stored is not None and stored.optional and key[1] == "weight_shape"


def _copied(fmt: Format, key: TensorKey, name: str, want: TensorInfo, have: TensorInfo) -> Finding:
    stored = fmt.tensors.get(key[1])
    shape = have.shape
    if _is_scalar(want.shape):
        fits = _is_scalar(shape)
        detail = f"{have} into one number"
        if not fits:
            return Finding("loader.stops", "refused", name, detail)
        return _typed(name, want, have)
    if len(shape) != len(want.shape):
        return Finding("loader.stops", "refused", name, f"{have} into {want}")
    cut = repeated = False
    at = _sharded_dimension(stored, key[0], len(shape))
    for dimension, (size, room) in enumerate(zip(shape, want.shape, strict=True)):
        if size == room:
            continue
        if dimension == at and size > room:
            cut = True
        elif dimension != at and size == 1:
            repeated = True
        else:
            detail = f"{have} into {want}: dimension {dimension} is {size}, not {room}"
            return Finding("loader.stops", "refused", name, detail)
    if repeated:
        return Finding("loader.broadcast", "garbage", name, f"{have} is repeated to {want}")
    if cut:
        return Finding("loader.cut", "garbage", name, f"only a part of {have} enters {want}")
    return _typed(name, want, have)


def _typed(name: str, want: TensorInfo, have: TensorInfo) -> Finding:
    pair = {want.dtype, have.dtype}
    if len(pair) == 1 or any(pair <= types for types in _CONVERTIBLE):
        return Finding("slot.fits", "fits", name, f"{have}")
    detail = f"{have} is converted to {want.dtype} as if it were plain numbers"
    return Finding("loader.cast", "garbage", name, detail)


def _is_scalar(shape: tuple[int, ...]) -> bool:
    return shape in ((), (1,))


def _sharded_dimension(stored: Stored | None, projection: str, rank: int) -> int | None:
    """The inner size: outputs of gate and up, inputs of down."""
    if stored is None or stored.outputs_at is None or rank != 2:
        return None
    return stored.outputs_at if projection != "down_proj" else 1 - stored.outputs_at


def routed_faults(
    layer: LayerTensors, fmt: Format, experts: int, sizes: Mapping[str, tuple[int, int]]
) -> Iterator[Finding]:
    """What keeps the routed experts themselves from being this format: missing experts or tensors, other
    types or shapes, experts beyond those of the config (the first of them would enter the shared slot).
    `sizes` gives (outputs, inputs) of each projection."""
    beyond = sorted(number for number in layer.routed if number >= experts)
    missing = experts - (len(layer.routed) - len(beyond))
    if missing:
        first = next(number for number in range(experts) if number not in layer.routed)
        where = f"{layer.block}.experts.{first}"
        yield Finding("checkpoint.routed", "refused", where, f"{missing} experts are missing")
    if beyond:
        where, detail = f"{layer.block}.experts.{beyond[0]}", f"the config has {experts} experts"
        yield Finding("checkpoint.routed", "refused", where, detail)
    for number, tensors in layer.routed.items():
        for projection in PROJECTIONS:
            yield from _projection_faults(
                layer, fmt, number, projection, tensors, sizes[projection]
            )


def _projection_faults(
    layer: LayerTensors,
    fmt: Format,
    number: int,
    projection: str,
    tensors: Mapping[TensorKey, TensorInfo],
    size: tuple[int, int],
) -> Iterator[Finding]:
    for suffix, stored in fmt.tensors.items():
        name = f"{layer.block}.experts.{number}.{projection}.{suffix}"
        info = tensors.get((projection, suffix))
        if info is None:
            if not stored.optional and (projection, stored.other_name) not in tensors:
                yield Finding("checkpoint.routed", "refused", name, f"missing; {fmt.name} has it")
            continue
        shape = stored.shape(*size)
        if not (info.shape == shape or (not shape and _is_scalar(info.shape))):
            detail = f"{info}, but {fmt.name} stores {list(shape)}"
            yield Finding("checkpoint.routed", "refused", name, detail)
        elif info.dtype not in stored.dtypes:
            detail = f"{info}, but {fmt.name} stores {' or '.join(stored.dtypes)}"
            yield Finding("checkpoint.routed", "refused", name, detail)
