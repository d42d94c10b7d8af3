"""A checkpoint folder: its configuration, and the expert tensors that its shards' headers list."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.checkpoint_headers import MAX_HEADER_BYTES, TensorInfo, file_size, read_header
from models.errors import InputError

_INDEX = "model.safetensors.index.json"
_EXPERT = re.compile(
    r"(?P<block>(?P<root>.*\b)layers\.(?P<layer>[0-9]{1,9})\.[a-z_]+)\."
    r"(?:experts\.(?P<expert>[0-9]{1,9})|(?P<shared>shared_experts?))\."
    r"(?P<projection>gate_proj|up_proj|down_proj|gate_up_proj|w1|w2|w3)\.(?P<suffix>[a-z0-9_]+)"
)
TensorKey = tuple[str, str]  # projection, suffix
_SUFFIXES = {"scale": "weight_scale_inv"}  # DeepSeek's own name of the block scale
_PROJECTIONS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Expert tensors of one layer: `shared` and each of `routed` by (projection, suffix). `block` is the
    name's part before `experts` and `shared_experts`; `names` gives the stored name of a shared one."""

    layer: int
    block: str
    routed: dict[int, dict[TensorKey, TensorInfo]]
    shared: dict[TensorKey, TensorInfo]
    names: dict[TensorKey, str]


@dataclass(frozen=True)
class Checkpoint:
    """`config` is the text model's; `architecture` the class of the whole model, `text_architecture` the
    text model's own, where it has one; `quantization` the parsed quantisation config, empty without
    one, from `quantization_file`."""

    folder: Path
    config: Mapping[str, Any]
    architecture: str
    text_architecture: str
    quantization: Mapping[str, Any]
    quantization_file: str
    layers: tuple[LayerTensors, ...]
    num_tensors: int


def open_checkpoint(folder: Path) -> Checkpoint:
    """Reads the configuration and all headers. InputError with file and key for what is not usable."""
    try:
        is_folder = folder.is_dir()
        folder.stat()
    except OSError as error:
        raise InputError(str(folder), "folder", error.strerror, "a checkpoint folder") from error
    if not is_folder:
        raise InputError(str(folder), "folder", "a file", "a checkpoint folder")
    outer = _json(folder / "config.json")
    text = outer.get("text_config", outer)
    if not isinstance(text, dict):
        raise InputError(str(folder / "config.json"), "text_config", text, "an object")
    quantization, source = _quantization(folder, outer, text)
    tensors = _tensors(folder)
    return Checkpoint(
        folder,
        text,
        _architecture(folder, outer.get("architectures") or text.get("architectures")),
        _architecture(folder, text.get("architectures") or outer.get("architectures")),
        quantization,
        source,
        _layers(tensors),
        len(tensors),
    )


def _json(path: Path) -> dict[str, Any]:
    if file_size(path) > MAX_HEADER_BYTES:
        raise InputError(str(path), "file", file_size(path), f"at most {MAX_HEADER_BYTES} bytes")
    try:
        value = json.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(str(path), "file", error.strerror, "a readable file") from error
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), "file", str(error), "a JSON object") from error
    if not isinstance(value, dict):
        raise InputError(str(path), "file", type(value).__name__, "a JSON object")
    return value


def _architecture(folder: Path, names: Any) -> str:
    if isinstance(names, list) and names and isinstance(names[0], str) and names[0].isidentifier():
        return names[0]
    allowed = "a list with the model's class"
    raise InputError(str(folder / "config.json"), "architectures", names, allowed)


def _quantization(
    folder: Path, outer: dict[str, Any], text: dict[str, Any]
) -> tuple[Mapping[str, Any], str]:
    """`quantization_config` of config.json, or ModelOpt's own file."""
    found = outer.get("quantization_config") or text.get("quantization_config")
    if found is not None:
        if not isinstance(found, dict):
            raise InputError(str(folder / "config.json"), "quantization_config", found, "an object")
        return found, "config.json"
    path = folder / "hf_quant_config.json"
    if not path.exists():
        return {}, "config.json"
    inner = _json(path).get("quantization")
    if not isinstance(inner, dict):
        raise InputError(str(path), "quantization", inner, "an object")
    return {"quant_method": "modelopt", **inner}, path.name


def _tensors(folder: Path) -> dict[str, TensorInfo]:
    index = folder / _INDEX
    if index.exists():
        return _indexed(folder, index)
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise InputError(str(folder), "folder", "no *.safetensors", f"shards, or {_INDEX}")
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for name, info in read_header(shard).items():
            if name in tensors:
                raise InputError(str(shard), name, f"also in {tensors[name].file}", "one place")
            tensors[name] = info
    return tensors


def _indexed(folder: Path, index: Path) -> dict[str, TensorInfo]:
    """All tensors of the shards that the index names: the server's loader reads whole shards, so a tensor
    that the index forgets is loaded all the same."""
    where = _json(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise InputError(str(index), "weight_map", where, "an object of tensor names and files")
    headers: dict[str, dict[str, TensorInfo]] = {}
    promised: dict[str, TensorInfo] = {}
    for name, shard in where.items():
        if not name.isprintable():
            raise InputError(str(index), "weight_map", name, "names of printable characters")
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
            raise InputError(str(index), f"weight_map.{name}", shard, "a file name in the folder")
        if shard not in headers:
            if not (folder / shard).is_file():
                raise InputError(str(index), f"weight_map.{name}", shard, "a shard that is there")
            headers[shard] = read_header(folder / shard)
        if name not in headers[shard]:
            raise InputError(str(folder / shard), name, None, f"a tensor that {_INDEX} promises")
        promised[name] = headers[shard][name]
    found = {name: info for header in headers.values() for name, info in header.items()}
    return found | promised


def _layers(tensors: Mapping[str, TensorInfo]) -> tuple[LayerTensors, ...]:
    """Expert tensors by layer. Where a draft module counts layers of its own (`mtp.layers.0`), they are
    those of the larger part, the model's."""
    roots: dict[str, dict[int, LayerTensors]] = {}
    for name, info in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            continue
        number, layers = int(match["layer"]), roots.setdefault(match["root"], {})
        layer = layers.setdefault(number, LayerTensors(number, match["block"], {}, {}, {}))
        projection, suffix = match["projection"], match["suffix"]
        key = (_PROJECTIONS.get(projection, projection), _SUFFIXES.get(suffix, suffix))
        if match["shared"]:
            layer.shared[key] = info
            layer.names[key] = name
        else:
            layer.routed.setdefault(int(match["expert"]), {})[key] = info
    largest = max(roots.values(), key=len, default={})
    return tuple(largest[number] for number in sorted(largest))
