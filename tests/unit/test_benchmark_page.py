"""BENCHMARKS.md keeps what people wrote; benchmarks replace only their own sections."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TEXT = "# Page\n\n<!-- begin one -->\nold\n<!-- end one -->\n\nA note.\n\n<!-- begin two -->\n<!-- end two -->\n"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import page

    path = tmp_path / "PAGE.md"
    path.write_text(TEXT)
    return page, path


def test_only_the_section_is_replaced(page):
    module, path = page
    module.put("one", ["new", "lines"], path)
    assert path.read_text() == TEXT.replace("old", "new\nlines")
    module.put("two", ["more"], path)
    module.put("one", ["old"], path)
    assert path.read_text() == TEXT.replace("begin two -->", "begin two -->\nmore")


def test_a_section_without_a_place_is_refused_and_nothing_written(page):
    module, path = page
    for text in (TEXT, TEXT.replace("<!-- end two -->\n", "")):
        path.write_text(text)
        with pytest.raises(ValueError, match="no place for 't"):
            module.put("three" if text == TEXT else "two", ["x"], path)
        assert path.read_text() == text


def test_every_place_of_the_page_has_its_benchmark(page, monkeypatch):
    module, _ = page
    monkeypatch.syspath_prepend(ROOT / "tests")
    import run

    assert module.places()[0] == "header"
    assert set(module.places()) <= set(run.SECTIONS)
    assert {"sites", "universal", "universal_time", "wrong_profiles"} <= set(module.places())
