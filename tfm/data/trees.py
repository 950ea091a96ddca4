"""Constituency trees: bracketed text of the Penn Treebank, and trees as the tokens of a sequence.

A tree is a `Node` with the label TOP. As a sequence (Vinyals et al. 2015, "Grammar as a Foreign Language")
it is a token for each opening bracket, for each word its tag, and for each closing bracket:

    (TOP (S (NP (NNP John)) (VP (VBZ sleeps)) (. .)))        the tree
    (S (NP NNP )NP (VP VBZ )VP . )S                          the sequence

The words are not in the sequence: the parser has them in its input.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tfm.errors import UserError

TOP = "TOP"
ROOTS = ("", TOP, "ROOT", "S1")  # labels of the outermost bracket that say nothing
EMPTY = "-NONE-"  # tag of an element without a word, such as a trace
UNKNOWN_TAG = "XX"  # of words that a sequence has no tag for
MOST_DEPTH = 200  # brackets inside each other; the deepest of the Wall Street Journal has below 50
TOKEN = re.compile(r"[()]|[^\s()]+")
FUNCTION = re.compile(r"^([^-=|].*?)[-=|].*")  # NP-SBJ-1, NP=2, PRT|ADVP; not -LRB-
ESCAPES = str.maketrans({"(": "-LRB-", ")": "-RRB-"})


class Leaf(NamedTuple):
    """A word and its tag."""

    tag: str
    word: str


class Node(NamedTuple):
    """A constituent."""

    label: str
    children: tuple["Node | Leaf", ...]


class Span(NamedTuple):
    """The label of a constituent, its first word, and the word behind its last, counted from 0."""

    label: str
    start: int
    end: int


class Restored(NamedTuple):
    """A tree, and the rules of `restore_tree` that it took to make it, sorted; none for a well-formed one."""

    tree: Node
    repairs: tuple[str, ...]


class _OpenBracket:
    """A bracket of a file that is not closed yet."""

    def __init__(self, line):
        self.line, self.label, self.word, self.children = line, "", "", []


def read_trees(lines: Iterable[str], shown_as: str) -> Iterator[Node]:
    """The trees of bracketed text, as they stand there; one may take several lines.

    Args:
      lines: of the text.
      shown_as: name of the text in error messages.

    Raises:
      UserError: brackets do not match, or a bracket is neither a tag with a word nor a label with brackets;
        the message has the number of the line.
    """
    stack: list[_OpenBracket] = []
    for number, line in enumerate(lines, 1):
        where = f"Line {number:,} of {shown_as}"
        for token in TOKEN.findall(line):
            if token == "(":
                _check_opening(stack, where)
                stack.append(_OpenBracket(number))
            elif token == ")":
                closed = _close(stack, where)
                if not stack:
                    yield _as_tree(closed)
                else:
                    stack[-1].children.append(closed)
            else:
                _add_text(stack, token, where)
    if stack:
        raise UserError(
            f"{shown_as} ends inside of the tree that begins on line {stack[0].line:,}: add the "
            f"{len(stack):,} closing bracket(s) that it lacks, or fetch the file again."
        )


def clean_tree(tree: Node) -> Node | None:
    """The tree without empty elements and what holds only these, and without function tags; None for nothing.

    NP-SBJ-1 becomes NP, PRT|ADVP becomes PRT.
    """
    cleaned = _clean(tree)
    return cleaned if isinstance(cleaned, Node) else None


def format_tree(tree: Node | Leaf) -> str:
    """The tree as bracketed text, in one line."""
    if isinstance(tree, Leaf):
        return f"({tree.tag} {tree.word})"
    return f"({tree.label} {' '.join(map(format_tree, tree.children))})"


def list_leaves(tree: Node | Leaf) -> list[Leaf]:
    """Words and tags, in order."""
    if isinstance(tree, Leaf):
        return [tree]
    return [leaf for child in tree.children for leaf in list_leaves(child)]


def list_spans(tree: Node) -> list[Span]:
    """The constituents, each before those inside of it."""
    return _list_spans(tree, 0)


def linearize(tree: Node) -> list[str]:
    """The tokens of the sequence; TOP has none."""
    return [token for child in tree.children for token in _linearize(child)]


def split_words(sentence: str) -> list[str]:
    """The words of a sentence, which white space separates; parentheses as the Penn Treebank writes them."""
    return [word.translate(ESCAPES) for word in sentence.split()]


def restore_tree(tokens: Iterable[str], words: Sequence[str]) -> Restored:
    """The tree of a sequence over the words of its sentence; whatever the sequence, it has all of the words.

    A sequence that is no tree is repaired by these rules:

        unopened       a closing bracket that no open one has the label of is left out
        unclosed       a closing bracket closes the open ones inside of its own, and the end closes all
        empty          a constituent without words is left out
        too many tags  tags behind the last word are left out
        missing tags   words without a tag are added where the sequence ends, with the tag XX
        too deep       an opening bracket inside of `MOST_DEPTH` others is left out
        no label       a bracket without a label is left out

    Args:
      tokens: of the sequence.
      words: of the sentence.
    """
    stack: list[tuple[str, list[Node | Leaf]]] = [(TOP, [])]
    repairs: set[str] = set()
    left = list(reversed(words))
    for token in tokens:
        label = token[1:].translate({ord("("): None, ord(")"): None})
        if token[0] not in "()":
            _add_leaf(stack, token.translate(ESCAPES), left, repairs)
        elif not label:
            repairs.add("no label")
        elif token[0] == ")":
            _close_label(stack, label, repairs)
        elif len(stack) >= MOST_DEPTH - 1:  # with TOP and the bracket of a word
            repairs.add("too deep")
        else:
            stack.append((label, []))
    if left:
        repairs.add("missing tags")
        stack[-1][1].extend(Leaf(UNKNOWN_TAG, word) for word in reversed(left))
    if len(stack) > 1:
        repairs.add("unclosed")
    while len(stack) > 1:
        _close_innermost(stack, repairs)
    return Restored(Node(TOP, tuple(stack[0][1])), tuple(sorted(repairs)))


def _check_opening(stack, where):
    if len(stack) == MOST_DEPTH:
        raise UserError(
            f"{where} opens more than {MOST_DEPTH} brackets inside each other: expected the parse of a "
            "sentence; check the brackets."
        )
    if stack and stack[-1].word:
        raise UserError(f"{where} has a bracket behind the word {stack[-1].word!r}: write (TAG word).")
    if len(stack) > 1 and not stack[-1].label:
        raise UserError(
            f"{where} has a bracket without a label inside of the tree that begins on line "
            f"{stack[0].line:,}: expected (LABEL ...); a closing bracket may be missing before it."
        )


def _close(stack, where):
    """The innermost bracket as a node or a leaf, taken from the stack."""
    if not stack:
        raise UserError(f"{where} has a closing bracket without an opening one: check the brackets.")
    bracket = stack.pop()
    if bracket.word:
        return Leaf(bracket.label, bracket.word)
    if bracket.children:
        return Node(bracket.label, tuple(bracket.children))
    raise UserError(f"{where} closes the bracket ({bracket.label}), which has no word: write (TAG word).")


def _add_text(stack, token, where):
    if not stack:
        raise UserError(f"{where} has the text {token!r} outside of brackets: expected trees, (S ...).")
    bracket = stack[-1]
    if not bracket.label and not bracket.children:
        bracket.label = token
    elif bracket.word or bracket.children:
        raise UserError(
            f"{where} has the text {token!r} where the bracket ({bracket.label} can only close or hold "
            "further brackets: write (TAG word); a parenthesis as a word is -LRB- or -RRB-."
        )
    else:
        bracket.word = token


def _as_tree(bracket):
    if isinstance(bracket, Node) and bracket.label in ROOTS:
        return Node(TOP, bracket.children)
    return Node(TOP, (bracket,))


def _clean(tree):
    if isinstance(tree, Leaf):
        return None if tree.tag == EMPTY else Leaf(FUNCTION.sub(r"\1", tree.tag), tree.word)
    children = tuple(child for child in map(_clean, tree.children) if child is not None)
    return Node(FUNCTION.sub(r"\1", tree.label), children) if children else None


def _list_spans(tree, start):
    end = start + len(list_leaves(tree))
    spans = [Span(tree.label, start, end)]
    for child in tree.children:
        if isinstance(child, Node):
            spans += _list_spans(child, start)
        start += len(list_leaves(child))
    return spans


def _linearize(tree):
    if isinstance(tree, Leaf):
        return [tree.tag]
    return [f"({tree.label}", *linearize(tree), f"){tree.label}"]


def _add_leaf(stack, tag, left, repairs):
    if left:
        stack[-1][1].append(Leaf(tag, left.pop()))
    else:
        repairs.add("too many tags")


def _close_label(stack, label, repairs):
    if label not in [name for name, _ in stack[1:]]:
        repairs.add("unopened")
        return
    while stack[-1][0] != label:
        repairs.add("unclosed")
        _close_innermost(stack, repairs)
    _close_innermost(stack, repairs)


def _close_innermost(stack, repairs):
    label, children = stack.pop()
    if children:
        stack[-1][1].append(Node(label, tuple(children)))
    else:
        repairs.add("empty")
