"""Broken folders and shards: one error each, with file and key; and a large checkpoint of headers."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open

from models.checkpoint_files import open_checkpoint
from models.checkpoint_headers import MAX_HEADER_BYTES, TensorInfo, read_header
from models.errors import InputError
from tests.models.checkpoint_cases import (
    QUANTIZATION,
    V3,
    config_of,
    expert_tensors,
    save,
    write,
    write_headers_only,
)

ROOT = Path(__file__).parents[2]
SHARD = "model-00001-of-00002.safetensors"


def test_the_header_is_what_the_library_wrote(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", {"x": ("float8_e4m3fn", (3, 5)), "y": ("int64", ())})
    assert read_header(tmp_path / "a.safetensors") == {
        "x": TensorInfo("F8_E4M3", (3, 5), "a.safetensors"),
        "y": TensorInfo("I64", (), "a.safetensors"),
    }


def test_files_of_headers_only_are_valid_for_the_library(tmp_path: Path) -> None:
    write_headers_only(tmp_path, V3, {"x.w": ("BF16", (2, 2)), "y.w": ("F32", (3,))}, shards=1)
    (shard,) = tmp_path.glob("*.safetensors")
    with safe_open(shard, framework="numpy") as file:
        assert sorted(file.keys()) == ["x.w", "y.w"]
        assert file.get_slice("x.w").get_shape() == [2, 2]


def entry(dtype: Any = "BF16", shape: Any = (1,), offsets: Any = (0, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file_of(header: bytes | dict[str, Any], *, length: int | None = None, data: int = 2) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "header length"),
    "seven bytes": (bytes(7), "header length"),
    "truncated header": (file_of({"x": entry()})[:20], "header length"),
    "longer than the file": (file_of({"x": entry()}, length=10_000), "header length"),
    "longer than allowed": (file_of({}, length=MAX_HEADER_BYTES + 1), "header length"),
    "all ones": (b"\xff" * 64, "header length"),
    "shorter than the header": (file_of({"x": entry()}, length=9), "header"),
    "not JSON": (file_of(b"{'x': 1}"), "header"),
    "not an object": (file_of(b"[1, 2]"), "header"),
    "too deep": (file_of(b"[" * 100_000), "header"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "header"),
    "a name twice": (file_of(b'{"x": 1, "x": 2}'), "header"),
    "no offsets": (file_of({"x": {"dtype": "F32", "shape": []}}), "x"),
    "unknown type": (file_of({"x": entry(dtype="F5")}), "x.dtype"),
    "negative size": (file_of({"x": entry(shape=[-1])}), "x.shape"),
    "fractional size": (file_of({"x": entry(shape=[1.0])}), "x.shape"),
    "true as a size": (file_of({"x": entry(shape=[True])}), "x.shape"),
    "too many elements": (file_of({"x": entry(shape=[2**62, 8])}), "x.shape"),
    "half a byte": (file_of({"x": entry("F4", [3])}), "x.shape"),
    "bytes that no tensor fills": (file_of({"x": entry()}, data=5), "file"),
    "a hole": (file_of({"x": entry(), "y": entry(offsets=[4, 6])}, data=6), "y.data_offsets"),
    "an overlap": (file_of({"x": entry(), "y": entry()}), "y.data_offsets"),
    "a gap before the first": (file_of({"x": entry(offsets=[1, 3])}, data=3), "x.data_offsets"),
    "notes that are numbers": (
        file_of({"__metadata__": {"a": 1}, "x": entry()}),
        "__metadata__",
    ),
    "a byte order mark": (file_of(b"\xef\xbb\xbf{}", data=0), "header"),
    "UTF-16": (file_of("{}".encode("utf-16"), data=0), "header"),
    "half a surrogate pair": (file_of(b'{"\\ud800": 1}'), "header"),
    "data beyond the end": (file_of({"x": entry(offsets=[2, 4])}), "x.data_offsets"),
    "end before begin": (file_of({"x": entry(offsets=[2, 0])}), "x.data_offsets"),
    "shape and bytes differ": (file_of({"x": entry(shape=[3])}), "x.data_offsets"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_is_cut_or_lies_is_refused(name: str, tmp_path: Path) -> None:
    content, key = LIES[name]
    path = tmp_path / "lie.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert caught.value.key == key and str(path) in str(caught.value)


@pytest.mark.parametrize("name", sorted(LIES.keys() - {"a name twice"}))
def test_the_library_refuses_the_same_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "lie.safetensors"
    path.write_bytes(LIES[name][0])
    with pytest.raises(SafetensorError), safe_open(path, framework="numpy"):
        pass


def test_a_name_of_two_lines_would_break_the_message(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_of({"a\nb": entry()}))
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert len(str(caught.value).splitlines()) == 1


def whole(folder: Path) -> Path:
    return write(folder, config_of("bf16"), expert_tensors("bf16"))


def rewrite_index(folder: Path, change: Callable[[dict[str, str]], None]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def pipe_without_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    pipe(folder / SHARD)


def folder_as_shard(folder: Path) -> None:
    (folder / SHARD).unlink()
    (folder / SHARD).mkdir()


FIRST = "model.layers.1.mlp.experts.0.gate_proj.weight"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), "config.json: file"),
    "config is a list": (lambda d: (d / "config.json").write_text("[]"), "config.json: file"),
    "config is cut": (lambda d: (d / "config.json").write_text('{"a": '), "config.json: file"),
    "config is a symlink loop": (lambda d: loop(d / "config.json"), "config.json: file"),
    "config is a pipe": (lambda d: pipe(d / "config.json"), "config.json: file"),
    "config is endless": (lambda d: endless(d / "config.json"), "config.json: file"),
    "shard is a pipe": (pipe_without_index, f"{SHARD}: file"),
    "index is cut": (
        lambda d: (d / "model.safetensors.index.json").write_text("{"),
        "index.json: file",
    ),
    "index without a map": (
        lambda d: (d / "model.safetensors.index.json").write_text("{}"),
        "weight_map",
    ),
    "shard missing": (lambda d: (d / SHARD).unlink(), "weight_map."),
    "shard is a symlink loop": (lambda d: loop(d / SHARD), "weight_map."),
    "shard is a folder": (folder_as_shard, "weight_map."),
    "shard outside the folder": (
        lambda d: rewrite_index(d, lambda where: where.update({FIRST: "../x.safetensors"})),
        f"weight_map.{FIRST}",
    ),
    "shard is a number": (
        lambda d: rewrite_index(d, lambda where: where.update({FIRST: 3})),  # type: ignore[dict-item]
        f"weight_map.{FIRST}",
    ),
    "a name of two lines": (
        lambda d: rewrite_index(d, lambda where: where.update({"a\nb": SHARD})),
        "weight_map",
    ),
    "a tensor that no shard has": (
        lambda d: rewrite_index(d, lambda where: where.update({"ghost": SHARD})),
        f"{SHARD}: ghost",
    ),
    "truncated shard": (lambda d: os.truncate(d / SHARD, 100), f"{SHARD}: header length"),
    "cut data": (
        lambda d: os.truncate(d / SHARD, (d / SHARD).stat().st_size - 1),
        "data_offsets",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_folder_is_refused_once_with_file_and_key(name: str, tmp_path: Path) -> None:
    spoil, where = FAULTS[name]
    spoil(whole(tmp_path))
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    assert where in str(caught.value)


def test_a_tensor_that_the_index_forgets_counts(tmp_path: Path) -> None:
    folder = whole(tmp_path)
    rewrite_index(folder, lambda where: where.__delitem__(FIRST))
    assert open_checkpoint(folder).num_tensors == len(expert_tensors("bf16"))


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    loop(tmp_path / "loop")
    for path in (file, tmp_path / "loop", tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match=str(path)):
            open_checkpoint(path)


def test_two_shards_without_an_index_may_not_share_a_name(tmp_path: Path) -> None:
    folder = whole(tmp_path)
    (folder / "model.safetensors.index.json").unlink()
    assert open_checkpoint(folder).num_tensors == len(expert_tensors("bf16"))
    (folder / "again.safetensors").write_bytes((folder / SHARD).read_bytes())
    with pytest.raises(InputError, match="again"):
        open_checkpoint(folder)


def test_a_checkpoint_of_deepseek_v3_s_size_needs_little_memory(tmp_path: Path) -> None:
    """61 layers, 256 experts, headers only: more than 90,000 tensors in sparse files."""
    config = V3 | {
        "hidden_size": 7168,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_hidden_layers": 61,
        "first_k_dense_replace": 3,
        "quantization_config": QUANTIZATION["fp8_block"],
    }
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in range(3, 61):
        for expert in [*(f"experts.{e}" for e in range(256)), "shared_experts"]:
            for name, (o, k) in {
                "gate_proj": (2048, 7168),
                "up_proj": (2048, 7168),
                "down_proj": (7168, 2048),
            }.items():
                base = f"model.layers.{layer}.mlp.{expert}.{name}"
                tensors[f"{base}.weight"] = ("F8_E4M3", (o, k))
                tensors[f"{base}.weight_scale_inv"] = ("F32", (o // 128, k // 128))
    write_headers_only(tmp_path, config, tensors, shards=163)
    # Linux counts what a process held before it became another program, so ru_maxrss would be ours
    script = (
        "import sys\nfrom moe_overlap.cli import main\n"
        f"sys.argv = ['moe-overlap', 'checkpoint', {str(tmp_path)!r}, '--json']\n"
        "try:\n    main()\nfinally:\n    print(open('/proc/self/status').read(), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    layers = json.loads(done.stdout)["layers"]
    assert [layer["verdict"] for layer in layers] == ["fuses"] * 58
    most_kb = next(line.split()[1] for line in done.stderr.splitlines() if "VmHWM" in line)
    assert int(most_kb) < 300_000
