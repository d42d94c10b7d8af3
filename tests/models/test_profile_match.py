"""A profile stands in for another of the same GPU only, unless it is asked to."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.errors import InputError
from models.profile import load_machine
from models.profile_match import load_same_gpu


def test_another_gpus_profile_is_refused_unless_asked() -> None:
    wanted = load_machine("h200-2x-nvlink")
    assert load_same_gpu("h200-8x-ib", wanted).name == "h200-8x-ib"
    with pytest.raises(InputError, match="H200 SXM") as caught:
        load_same_gpu("h100-8x-ib", wanted)
    assert caught.value.key == "gpu.name"
    assert load_same_gpu("h100-8x-ib", wanted, other_gpu=True).name == "h100-8x-ib"


def test_a_users_profile_is_known_by_its_gpu(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: h200-2x-nvlink\nname: mine\nsource: test\n")
    assert load_same_gpu(path, load_machine("h200-8x-ib")).name == "mine"
