"""Tests of the table of systems, and of what is printed and drawn from it."""

import importlib
import itertools
import re

import jax
import jax.numpy as jnp
import pytest

from tests.support.documents import load_docs_module
from tests.support.paths import ROOT
from tfm import models, tasks
from tfm.commands.systems import count_lines, main, make_cells
from tfm.family import AREAS, MODELS, SYSTEMS, TASKS, find_system

TOKENS = jnp.zeros((1, 3), int)
IMAGE = jnp.zeros((1, 224, 224, 3))
# {system: model, number of tokens, changed fields and inputs of the published size}
PUBLISHED = {
    "feed_forward_lm": ("feed_forward_lm", 16_383, {}, [TOKENS]),
    "lstm_lm": ("lstm_lm", 10_000, {}, [TOKENS]),
    "rnn_seq2seq": ("rnn_seq2seq", 30_000, {}, [TOKENS, TOKENS]),
    "conv_s2s": ("conv_s2s", 40_000, {}, [TOKENS, TOKENS]),
    "transformer": ("transformer", 37_000, {}, [TOKENS, TOKENS]),
    "t_dmca": ("t_dmca", 32_000, {}, [TOKENS]),
    "decoder_lm": (
        "decoder_lm",
        50_257,
        {"positions": "learned", "max_positions": 1024, "attention_bias": True},
        [TOKENS],
    ),
    "universal": ("universal", 37_000, {}, [TOKENS, TOKENS]),
    "vit": ("vit", None, {}, [IMAGE]),
    "detr": ("detr", None, {}, [IMAGE]),
}
SYSTEM_CASES = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_size(name):
    model, vocabulary, fields, inputs = PUBLISHED[name]
    module = models.find(model)
    sizes = [] if vocabulary is None else [vocabulary]
    network = module.Model(module.Config(**fields), *sizes)
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), *inputs, train=False))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes["params"])) == find_system(name).parameters


@pytest.mark.parametrize("name", MODELS)
def test_model_of_the_table_has_this_name(name):
    assert models.find(name).Config().name == name


@pytest.mark.parametrize("name", TASKS)
def test_task_of_the_table_has_this_name(name):
    assert tasks.find(name).Config().task == name


@SYSTEM_CASES
def test_code_and_page_of_a_system_exist(system):
    assert sum(count_lines(path.read_text(encoding="utf-8")) for path in system.files) > 50
    assert (ROOT / system.page).is_file()


@SYSTEM_CASES
def test_config_of_a_system_trains_its_model_or_its_task(system):
    name, _, variant = system.config.partition(":")
    get_config = importlib.import_module(f"tfm.configs.{name}").get_config
    config = get_config(*[variant] if variant else [])
    assert config.model.name in system.models or config.task in system.tasks


def test_folders_are_those_of_the_table():
    folders = {path.parent.name for path in (ROOT / "tfm" / "systems").glob("*/__init__.py")}
    assert folders == {system.name for system in SYSTEMS if not system.core_page}


def test_systems_are_in_the_order_of_their_years():
    years = [system.year for system in SYSTEMS]
    assert years == sorted(years)


@SYSTEM_CASES
def test_system_follows_earlier_systems_and_belongs_to_an_area(system):
    earlier = [each.name for each in SYSTEMS[: SYSTEMS.index(system)]]
    assert set(system.after) <= set(earlier)
    assert system.area in AREAS


@SYSTEM_CASES
def test_score_of_a_system_is_in_the_results(system):
    score = system.score.split()[0]
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert re.search(rf"(?<![\d.]){re.escape(score)}(?![\d.]*\d)", page), f"the results do not have {score}"


@pytest.fixture(scope="module")
def family_figure():
    return load_docs_module("family_figure")


def test_page_on_the_family_has_the_table(family_figure):
    assert family_figure.make_table(SYSTEMS) in (ROOT / "docs" / "family.md").read_text(encoding="utf-8")


def test_drawn_lineage_is_that_of_the_table(family_figure):
    assert (ROOT / "docs" / "figures" / "family.svg").read_text(encoding="utf-8") == family_figure.draw(
        SYSTEMS
    )


def test_boxes_of_the_lineage_are_in_their_years_and_do_not_overlap(family_figure):
    boxes = family_figure.place_boxes(SYSTEMS)
    for system in SYSTEMS:
        box = boxes[system.name]
        year = (system.year - SYSTEMS[0].year) * family_figure.YEAR
        assert year < box.top < box.bottom < year + family_figure.YEAR, system.name
        assert family_figure.LEFT <= box.left < box.right <= family_figure.WIDTH, system.name
    for one, other in itertools.combinations(boxes.values(), 2):
        assert not intersect(one, other), (one, other)


def test_lines_of_the_lineage_cross_neither_boxes_nor_other_lines(family_figure):
    boxes, lines = family_figure.place_boxes(SYSTEMS), family_figure.find_lines(SYSTEMS)
    assert lines.keys() == {(parent, system.name) for system in SYSTEMS for parent in system.after}
    for ends, line in lines.items():
        crossed = {
            name for name, box in boxes.items() if any(intersect(part, box) for part in segments(line))
        }
        assert crossed <= set(ends), ends
    for (ends, line), (others, other) in itertools.combinations(lines.items(), 2):
        if ends[0] != others[0]:
            parts = itertools.product(segments(line), segments(other))
            assert not any(intersect(*pair) for pair in parts), (ends, others)


def segments(line):
    """Returns the edges (left, top, right, bottom) of the straight parts of a line."""
    return [
        (*map(min, zip(start, end, strict=True)), *map(max, zip(start, end, strict=True)))
        for start, end in itertools.pairwise(line)
    ]


def intersect(one, other):
    """Returns whether two rectangles (left, top, right, bottom) have a point in common."""
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def test_lines_are_counted_without_comments_docstrings_and_blank_lines():
    source = (
        '"""A module."""\n\nx = 1  # a comment\n# another\n\n\ndef f():\n    """Returns x."""\n    return x\n'
    )
    assert count_lines(source) == 3
    assert count_lines("def f(): return '''a\nb'''") == 2


def test_command_prints_a_line_for_each_system(capsys):
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(SYSTEMS)
    for line, system in zip(lines[1:], SYSTEMS, strict=True):
        cells = make_cells(system)
        assert line.startswith(cells["system"])
        assert cells["parameters"] in line
