"""Pictures of attention: what is drawn of texts, whatever they hold."""

import matplotlib.text
import numpy as np
import pytest

from tfm import visualize


@pytest.mark.parametrize("text", [r"a $\foo$", "It costs $5_ or $10", "$"])
def test_a_text_is_drawn_as_it_is_and_not_as_a_formula(text, tmp_path, monkeypatch):
    drawn = {}
    draw = matplotlib.text.Text.draw

    def noted(self, renderer):
        drawn[self.get_text()] = self.get_parse_math()
        draw(self, renderer)

    monkeypatch.setattr(matplotlib.text.Text, "draw", noted)
    labels = [f"key {text}", "dog"], [f"query {text}", "hund"]
    path = tmp_path / "attention.png"
    visualize.draw_attention(np.eye(2)[None, None], *labels[::-1], f"title {text}", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [drawn[f"{place} {text}"] for place in ("key", "query", "title")] == [False] * 3
