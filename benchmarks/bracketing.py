"""Bracket counts beside those of PYEVALB: python -m benchmarks.bracketing (needs pip install PYEVALB).

Each of 1,000 trees of the built-in treebank is compared with a copy whose brackets have up to four random
mistakes. PYEVALB deletes neither punctuation nor TOP and takes equal brackets for one. So all tags are XX,
the trees have no TOP, and pairs with equal brackets are left out. Prints how many have equal counts.
"""

import random

from PYEVALB.parser import create_from_bracket_string
from PYEVALB.scorer import Scorer

from tfm.datasets import toy_language
from tfm.systems.parsing.bracketing import Parse, count_brackets
from tfm.systems.parsing.trees import (
    Leaf,
    Node,
    format_tree,
    linearize,
    list_leaves,
    list_spans,
    read_trees,
    restore_tree,
)

TREES, MISTAKES = 1000, 4
LABELS = ("NP", "VP", "PP")


def main() -> None:
    """Runs the command."""
    rng = random.Random(0)
    golds = (tree.children[0] for tree in read_trees(toy_language.read_trees("train")[:TREES], "trees"))
    pairs = [(gold, damage(gold, rng)) for gold in map(hide_tags, golds)]
    pairs = [pair for pair in pairs if all(map(is_comparable, pair))]
    found = [(count_ours(*pair), count_theirs(*pair)) for pair in pairs]
    equal = sum(ours == theirs for ours, theirs in found)
    matched, gold, test = (f"{sum(ours[i] for ours, _ in found):,}" for i in range(3))
    print(f"{equal:,} of {len(found):,} pairs: {matched} matched, {gold} gold, {test} test brackets")


def hide_tags(tree: Node | Leaf) -> Node | Leaf:
    """The tree with the tag XX for each word."""
    if isinstance(tree, Leaf):
        return Leaf("XX", tree.word)
    return Node(tree.label, tuple(map(hide_tags, tree.children)))


def damage(tree: Node, rng: random.Random) -> Node | Leaf:
    """A tree over the same words: brackets with other labels, too many or too few, then repaired."""
    tokens = linearize(Node("TOP", (tree,)))
    for _ in range(rng.randint(0, MISTAKES)):
        place = rng.randrange(len(tokens))
        if tokens[place][0] == "(":
            tokens[place] = f"({rng.choice(LABELS)}"
        elif rng.random() < 0.5:
            tokens.insert(place, rng.choice("()") + rng.choice(LABELS))
        elif tokens[place][0] == ")":
            tokens.pop(place)
    top = restore_tree(tokens, [leaf.word for leaf in list_leaves(tree)]).tree
    return top.children[0] if len(top.children) == 1 else top


def is_comparable(tree: Node | Leaf) -> bool:
    """Whether PYEVALB counts the tree by evalb's rules: one root without TOP, no bracket twice."""
    if isinstance(tree, Leaf) or tree.label == "TOP":
        return False
    spans = list_spans(tree)
    return len(set(spans)) == len(spans)


def count_ours(gold: Node, test: Node) -> tuple[int, int, int]:
    """(matched, gold, test) brackets by `tfm.systems.parsing.bracketing`."""
    return count_brackets(_as_parse(gold), _as_parse(test))[:3]


def count_theirs(gold: Node, test: Node) -> tuple[int, int, int]:
    """The same by PYEVALB."""
    found = Scorer().score_trees(*(create_from_bracket_string(format_tree(tree)) for tree in (gold, test)))
    return found.matched_brackets, found.gold_brackets, found.test_brackets


def _as_parse(tree):
    leaves = list_leaves(tree)
    return Parse([leaf.word for leaf in leaves], [leaf.tag for leaf in leaves], list_spans(tree))


if __name__ == "__main__":
    main()
