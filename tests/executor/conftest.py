"""The executor's tests need torch: files that import it are collected only where it is installed, and
where its tests are asked for, since to import it takes seconds."""

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what `-m "not torch"` would deselect as a whole."""
    if "not torch" not in config.getoption("markexpr"):
        return None
    if collection_path.is_dir():
        return True if collection_path.name == "kernels" else None
    marked = "pytestmark = pytest.mark.torch", "pytestmark = [pytest.mark.torch"
    return True if any(words in collection_path.read_text() for words in marked) else None
