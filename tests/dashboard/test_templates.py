"""What a template may not hold: each would let foreign text out of its place, or the policy refuse it."""

import re
from pathlib import Path

import pytest

import jobq.dashboard

pytestmark = pytest.mark.check

_FOLDER = Path(jobq.dashboard.__file__).parent
_TEMPLATES = sorted((_FOLDER / "templates").glob("*.html"))


@pytest.mark.parametrize("path", _TEMPLATES, ids=lambda path: path.name)
def test_a_template(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\|\s*safe\b", text), "autoescape is always on"
    assert "autoescape" not in text
    assert not re.search(r"<(script|style)(?![^>]*\bsrc=)[^>]*>", text), "no inline script or style"
    assert not re.search(r"\s(on[a-z]+|style|hx-on\S*)=", text), "what the policy refuses"
    plain = re.sub(r"{%.*?%}", "", text, flags=re.DOTALL)
    assert not re.search(r"[\w-]={{", plain), "an attribute without quotes"


def test_static_files_are_small_and_say_whose_they_are() -> None:
    sizes = {path.name: path.stat().st_size for path in (_FOLDER / "static").rglob("*") if path.is_file()}
    assert sizes["jobq.css"] <= 20_000
    assert sizes["jobq.js"] <= 8_000
    for path in (_FOLDER / "static" / "vendored").glob("*.js"):
        assert path.with_name(path.name.partition(".")[0] + "-LICENSE.txt").exists()
    assert not re.search(r"https?://", (_FOLDER / "static" / "jobq.js").read_text()), "nobody else is asked"
