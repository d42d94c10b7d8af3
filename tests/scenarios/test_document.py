"""YAML that cannot be used: one message with the place, whatever is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scenarios.document import MAX_BYTES, parse_document, read_document
from scenarios.errors import ScenarioError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n"
    for old, new in zip("abcdefg", "bcdefgh", strict=True)
)

BROKEN = {
    "a: {b: 1, b: 2}": "f.yaml:1:11: a.b: key given twice (first on line 1)",
    "[1, 2]": "f.yaml: holds [1, 2], a mapping of keys is needed",
    "": "f.yaml: is empty",
    "# nothing\n": "f.yaml: is empty",
    "a: 1\n---\nb: 2": "f.yaml:2:1: is not valid YAML",
    "a: [1, 2": "f.yaml:1:9: is not valid YAML",
    "a: !!python/object:os.system x": "f.yaml:1:4: a: cannot be read",
    "a: \x01": "f.yaml: is not valid YAML",
    "? [a]\n: 1": "f.yaml:1:3: a key must be plain text",
    "a: " + "[" * 5000: "more than 32 levels",
    "a: &a [*a]": "more than 32 levels",
    BOMB: "more than 100000 values once its aliases are followed",
    "a: " + "9" * 5000: "f.yaml:1:4: a: cannot be read",
    "a: *nope": "f.yaml:1:4: is not valid YAML",
    "a: !!binary abc": "f.yaml:1:4: a: cannot be read",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: repr(text[:30]))
def test_broken_text_names_its_place(text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_document(text, "f.yaml")
    assert BROKEN[text] in str(caught.value)
    assert len(str(caught.value)) < 600


def test_the_mark_stands_under_the_fault() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_document("first: 1\nsecond: {x: 1, x: 2}\n", "f.yaml")
    line, mark = str(caught.value).splitlines()[1:3]
    assert line[mark.index("^")] == "x"
    assert line[: mark.index("^")].endswith("{x: 1, ")


def test_data_is_plain_and_places_are_kept() -> None:
    document = parse_document("a:\n  - 1\n  - {b: 0x1f}\nc: 2024-01-01\n", "f.yaml")
    assert document.data == {"a": (1, {"b": 31}), "c": "2024-01-01"}
    assert document.values["a", 1, "b"] == (3, 9)
    assert document.keys["a", 1, "b"] == (3, 6)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    binary, large, fifo = tmp_path / "junk.yaml", tmp_path / "large.yaml", tmp_path / "pipe.yaml"
    binary.write_bytes(bytes(range(256)))
    large.write_text("a: 1\n" * (MAX_BYTES // 5 + 1))
    os.mkfifo(fifo)
    for path, problem in (
        (binary, "is not UTF-8 text (byte 0x80 at offset 128)"),
        (large, f"at most {MAX_BYTES} are read"),
        (fifo, "is not a regular file"),
        (tmp_path, "is a directory"),
        (tmp_path / "absent.yaml", "no such file"),
    ):
        with pytest.raises(ScenarioError, match=str(path)) as caught:
            read_document(path)
        assert problem in str(caught.value)
