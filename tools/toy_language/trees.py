"""A treebank of the built-in language: its English sentences with the trees that its grammar gives them.

The sentences are drawn as those of `corpus`, with another seed; labels and tags are those of the Penn
Treebank. A subordinate clause is inside of the verb phrase that it belongs to:

    (TOP (S (NP (DT The) (NN dog)) (VP (VBD slept) (SBAR (IN because) (S (NP (PRP it)) (VP (VBD was)
    (ADJP (JJ tired)))))) (. .)))

A sentence belongs to one split by its hash, so that the splits share none.
"""

from collections.abc import Iterator
from itertools import groupby
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from tfm.errors import UserError
from tools.toy_language import english
from tools.toy_language.meaning_tree import Clause, NounPhrase, Participant, Sentence, Word
from tools.toy_language.sentences import sentence

SIZES = {"train": 10_000, "validation": 500, "test": 500}
LONGEST = 24  # words, punctuation counted
_SEED = 1993
_VERBAL = ("auxiliary", "modal", "verb")
_POSSESSIVES = ("my", "his", "her", "our", "their")
# Tags of the words of times, manners and prepositions; the others are adverbs.
_TAGS = {
    **dict.fromkeys(("in", "on", "at", "of", "for", "with", "behind"), "IN"),
    **dict.fromkeys(("the", "a", "this", "every", "all"), "DT"),
    **dict.fromkeys(("last", "next", "long"), "JJ"),
    **dict.fromkeys(("day", "week", "year", "night", "morning", "evening", "time", "front"), "NN"),
    **dict.fromkeys(("yesterday", "today", "tomorrow", "tonight"), "NN"),
    **dict.fromkeys(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"), "NNP"),
    "to": "TO",
}

Tree = tuple[str, Any]  # (tag, word) or (label, list of trees)


class _Token(NamedTuple):
    """A word or a sign of punctuation, and the node of the meaning tree that it realises."""

    text: str
    node: str

    @property
    def clause(self):
        return self.node.partition(".")[0]

    @property
    def role(self):
        return self.node.split(".")[1]


def generate(split: str) -> Iterator[str]:
    """The trees of a split as bracketed text, one a line, in their fixed order.

    Raises:
      UserError: there is no such split.
    """
    if split not in SIZES:
        raise UserError(f"Expected a split out of {', '.join(SIZES)}, got {split!r}: choose one of these.")
    rng = Random(_SEED + list(SIZES).index(split))
    seen: set[str] = set()
    while len(seen) < SIZES[split]:
        meaning = sentence(rng)
        tokens = _split_tokens(english.say(meaning))
        text = " ".join(token.text for token in tokens)
        if len(tokens) > LONGEST or text in seen or _split_of(text) != split:
            continue
        seen.add(text)
        yield _format(("TOP", [_sentence(meaning, tokens)]))


def format_parse(meaning: Sentence) -> str:
    """The tree of a sentence as bracketed text."""
    return _format(("TOP", [_sentence(meaning, _split_tokens(english.say(meaning)))]))


def _split_of(text):
    return {0: "validation", 1: "test"}.get(crc32(text.encode()) % 10, "train")


def _format(tree):
    label, content = tree
    return f"({label} {content if isinstance(content, str) else ' '.join(map(_format, content))})"


def _split_tokens(said: list[Word]) -> list[_Token]:
    """Tokens as the Penn Treebank divides them: "did n't", "can not", punctuation by itself."""
    tokens = []
    for text, nodes in said:
        bare = text.rstrip(",.")
        if len(nodes) > 1:
            cut = len(bare) - 3  # of "n't" and of the "not" of "cannot"
            tokens += [_Token(bare[:cut], nodes[0]), _Token(bare[cut:], nodes[1])]
        else:
            tokens.append(_Token(bare, nodes[0]))
        tokens += [_Token(sign, sign) for sign in text[len(bare) :]]
    return tokens


def _sentence(meaning, tokens):
    clauses = [
        _Clause(clause, [token for token in tokens if token.clause == str(number)])
        for number, clause in enumerate(meaning.clauses)
    ]
    links = [
        next(token.text for token in tokens if token.node == f"link{i}") for i in range(len(clauses) - 1)
    ]
    stop = (".", ".")
    if meaning.inverted:
        first = ("SBAR", [("IN", links[0]), ("S", clauses[1].children)])
        return ("S", [first, (",", ","), *clauses[0].children, stop])
    for number in reversed(range(len(links))):
        if meaning.links[number].subordinate:
            inner = ("S", clauses[number + 1].children)
            clauses[number].verb_phrase.append(("SBAR", [("IN", links[number]), inner]))
    parts: list[Tree] = [("S", clauses[0].children)]
    for link, text, clause in zip(meaning.links, links, clauses[1:], strict=True):
        if not link.subordinate:
            parts += [(",", ",")] * link.en_comma + [("CC", text), ("S", clause.children)]
    return ("S", [*(parts if len(parts) > 1 else clauses[0].children), stop])


class _Clause:
    """The constituents of a clause.

    Attributes:
      children: of its S.
      verb_phrase: the children of its innermost VP.
    """

    def __init__(self, clause: Clause, tokens: list[_Token]):
        self.children: list[Tree] = []
        self.verb_phrase = self.children
        self._clause = clause
        self._verbs = 0
        tail = max(i for i, token in enumerate(tokens) if token.role == "verb") if clause.verb.tail else None
        preposition = ""
        for role, group in groupby(enumerate(tokens), lambda each: each[1].role):
            texts = []
            for index, token in group:
                if index == tail and clause.objects and not clause.verb.tail_moves:
                    preposition = token.text
                elif index == tail:
                    self.verb_phrase.append(("PRT", [("RP", token.text)]))
                elif role in _VERBAL:
                    self._open_verb_phrase(token)
                else:
                    texts.append(token)
            if texts:
                found = self._constituent(role, texts)
                if preposition:
                    found, preposition = ("PP", [(_tag(preposition), preposition), found]), ""
                self.verb_phrase.append(found)

    def _open_verb_phrase(self, token):
        tag = _tag_verb(self._clause, token, self._verbs)
        phrase = ("VP", [(tag, token.text)])
        self.verb_phrase.append(("S", [phrase]) if tag == "TO" else phrase)
        self.verb_phrase = phrase[1]
        self._verbs += 1

    def _constituent(self, role, tokens):
        clause, texts = self._clause, [token.text for token in tokens]
        if role == "negation":
            return ("RB", texts[0])
        if role in ("time", "manner"):
            return _expression(texts)
        if role == "subject":
            return _noun_phrase(clause.subject, tokens)
        if role == "predicate":
            return _predicate(clause.predicate, tokens)
        number = int(role[-1])
        if role.startswith("object"):
            return _noun_phrase(clause.objects[number], tokens)
        count = sum(token.node.split(".")[2] == "preposition" for token in tokens)
        before = [(_tag(text), text) for text in texts[:count]]
        return ("PP", [*before, _noun_phrase(clause.phrases[number].noun_phrase, tokens[count:])])


def _tag(text):
    return _TAGS.get(text.lower(), "RB")


def _tag_verb(clause, token, number):
    """The tag of the verb `number` of a clause, counted from 0."""
    if number:
        if token.text == "to":
            return "TO"
        return "VBN" if clause.tense == "perfect" else "VB"
    wants = clause.modal is not None and clause.modal.en in ("want", "had to")
    if clause.tense == "future" or (clause.modal is not None and not wants):
        return "MD"
    tense = clause.modal.tense if wants else clause.tense
    if tense == "past":
        return "VBD"
    return "VBZ" if clause.subject.person == "3s" else "VBP"


def _expression(texts):
    """A time or a manner: (PP on Monday), (NP every day), (ADVP often)."""
    leaves = [(_tag(text), text) for text in texts]
    tags = [tag for tag, _ in leaves]
    if tags[0] == "IN":
        return ("PP", [leaves[0], ("NP", leaves[1:])])
    return ("ADVP" if set(tags) == {"RB"} else "NP", leaves)


def _noun_phrase(item: Participant, tokens: list[_Token]) -> Tree:
    if not isinstance(item, NounPhrase):
        return ("NP", [("PRP", token.text) for token in tokens])
    leaves = [(_tag_noun(item, token), token.text) for token in tokens]
    count = sum(token.node.endswith(".determiner") for token in tokens)
    if item.number and count > 1:
        return ("NP", [("QP", leaves[:count]), *leaves[count:]])
    return ("NP", leaves)


def _tag_noun(item, token):
    part, text = token.node.rpartition(".")[2], token.text.lower()
    if part == "adjective" or text == "many":
        return "JJ"
    if part == "noun":
        return "NNS" if item.plural else "NN"
    if item.number:
        return "CC" if text == "and" else "CD"
    return "PRP$" if text in _POSSESSIVES else "DT"


def _predicate(predicate, tokens):
    count = sum(".standard." not in token.node for token in tokens)
    tags = {"degree": "RB", "adjective": "JJ", "as": "IN"}
    leaves = [(tags[token.node.rpartition(".")[2]], token.text) for token in tokens[:count]]
    if not predicate.standard:
        return ("ADJP", leaves)
    return ("ADJP", [*leaves[:-1], ("PP", [leaves[-1], _noun_phrase(predicate.standard, tokens[count:])])])
