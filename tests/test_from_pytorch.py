"""Tests of the PyTorch code in docs/from_pytorch.md. The other code of the page is tested like the guide."""

import re

import pytest

from tests.support.pages import run_block
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "from_pytorch.md"
PYTORCH_BLOCK = re.compile(r"```py\n# PyTorch\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.long
def test_pytorch_code_prints_the_output_of_the_page():
    pytest.importorskip("torch", reason="the package torch is not installed")
    names = {}
    blocks = PYTORCH_BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 3
    for code, expected in blocks:
        assert run_block(code, PAGE.name, names) == expected
