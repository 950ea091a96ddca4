"""Constituency parsing (section 6.3): translates words into the tokens of their tree.

Trees are linearized as by Vinyals et al. 2015, "Grammar as a Foreign Language". Model, loss, batches
and search come from `tfm.tasks.translation`. This module turns the outputs back into trees and scores them by
labelled bracketing.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn

from tfm import tasks
from tfm.config import field, without_fields
from tfm.data.config import PairsConfig
from tfm.data.sources.opening import fingerprint_texts, read_sides
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.systems.parsing.bracketing import Parse, bracketing_scores
from tfm.systems.parsing.statistics import inspect_split
from tfm.systems.parsing.treebank import TREEBANK
from tfm.systems.parsing.trees import (
    TOP,
    Node,
    Restored,
    clean_tree,
    format_tree,
    linearize,
    list_leaves,
    list_spans,
    read_trees,
    restore_tree,
    split_words,
)
from tfm.tasks import translation
from tfm.tasks.translation.text_form import TextForm
from tfm.training.assets import prepare_tokenizer
from tfm.training.task import Best, Report, parameters_of

DATA = PairsConfig(kind=TREEBANK, source_language="words", target_language="trees", vocabulary_size=16_000)
# Section 6.3: beam 21, length penalty 0.3, outputs of at most the input's length + 300.
DECODING = DecodingConfig(beam_size=21, length_penalty=0.3, max_extra_tokens=300)
SCORE_NAMES = {"bracketing F1, all": "f1", "complete match": "complete_match"}  # scores during training
fingerprint = translation.fingerprint
__all__ = ["Config", "Parsing", "TreeForm", "create", "fingerprint", "inspect_split", "plan"]


@dataclasses.dataclass(frozen=True)
@without_fields(bleu_tokenizer="auto", ter=False)
class Config(translation.Config):
    """The config of a parsing run. `data` and `decoding` have the values of section 6.3."""

    task: str = tasks.task_field("parsing")
    data: PairsConfig = field(DATA, "Trees and their batches.")
    decoding: DecodingConfig = field(DECODING, "Search of evaluation and parsing.")

    SCORED_BY_BLEU: ClassVar[bool] = False
    SCORES: ClassVar[tuple[str, ...]] = (
        *("bracketing F1", "bracketing precision", "bracketing recall", "complete match"),
        *("error sentences", "bracketing F1, all", "well-formed outputs"),
    )


class TreeForm(TextForm):
    """The form of a parser, which reads the words of a sentence and predicts the tokens of its tree."""

    def read_source(self, text: str) -> str:
        """Returns the words of a sentence, separated by blanks."""
        return " ".join(split_words(text))

    def read_target(self, text: str) -> str:
        """Returns the tokens of a tree in bracketed text, without function tags and empty elements.

        Raises:
          UserError: if the text is not exactly one tree.
        """
        return " ".join(linearize(clean_tree(_read(text)) or Node(TOP, ())))

    def write_target(self, source: str, text: str) -> str:
        """Returns the tree of tokens over the words of a sentence. `restore_tree` repairs other outputs."""
        tree = _restore(text, source).tree
        return format_tree(tree) if tree.children else ""


class Parsing(translation.Translation):
    """A task that translates words into trees. For the attributes, see `Translation`.

    The user's texts are sentences split into words as in the treebank, and bracketed trees. The text of the
    tree of an empty sentence is empty.
    """

    best = Best("validation/f1", "max")
    output_scores = tuple(SCORE_NAMES.values())
    form_type = TreeForm
    example_help = "Your own sentence to parse, split into words as in the treebank: The dog sleeps ."

    def align(self, params: Any, sources: Iterable[str], targets: Iterable[str]) -> NoReturn:
        """Raises a UserError, because the brackets of a tree correspond to no words."""
        raise UserError(
            "A parse has no word alignment, because its brackets correspond to no words. Do not ask for an "
            "alignment."
        )

    def score_hypotheses(
        self, hypotheses: list[str], sources: Sequence[str], references: Sequence[str]
    ) -> dict[str, float]:
        """Returns {"f1": per cent, "complete_match": per cent}.

        Args:
          hypotheses: trees as bracketed text, "" for an empty sentence.
          sources: the sentences.
          references: the tokens of each reference tree, without its words.
        """
        words = map(self.form.read_source, sources)
        golds = [_restore(*pair).tree for pair in zip(references, words, strict=True)]
        trees = [_read(text) if text else Node(TOP, ()) for text in hypotheses]
        scores = _score_trees(trees, golds)
        return {SCORE_NAMES[score.name]: score.value for score in scores if score.name in SCORE_NAMES}

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields a report with the parses, the bracketing scores and the share of well-formed outputs.

        The outputs are trees in bracketed text, also for outputs of the model that needed repairs.

        Raises:
          UserError: if the split cannot be used.
        """
        sentences, references = read_sides(self.config.data, split)
        words = list(map(self.form.read_source, sentences))
        began = time.monotonic()
        outputs = self.predict(parameters_of(variables), words, self.config.decoding)
        rate = len(words) / (time.monotonic() - began)
        parses = [_restore(best[0].text, source) for best, source in zip(outputs, words, strict=True)]
        trees = [parse.tree for parse in parses]
        golds = [_restore(*pair).tree for pair in zip(references, words, strict=True)]
        texts = list(map(format_tree, trees))
        yield Report(
            texts,
            [*_score_trees(trees, golds), count_well_formed(parses)],
            [
                {"sentence": sentence, "reference": format_tree(gold), "parse": text}
                for sentence, gold, text in zip(sentences, golds, texts, strict=True)
            ],
            self.config.evaluation_settings,
            rate,
            fingerprint_texts(sentences, references),
        )


def plan(config: Config) -> Parsing:
    """Returns the task of a run that has no vocabulary yet, see `translation.plan`."""
    return Parsing(config, translation.plan(config).tokenizer)


def create(config: Config, workdir: str, *, new: bool = True) -> Parsing:
    """Creates the task of a run. See `tfm.training.assets.prepare_tokenizer`."""
    return Parsing(config, prepare_tokenizer(config, workdir, plan, new=new))


def count_well_formed(parses: Sequence[Restored]) -> Score:
    """Returns the percentage of outputs that needed no repair. The signature counts the repairs by rule."""
    repairs = Counter(rule for restored in parses for rule in restored.repairs)
    listed = ", ".join(f"{rule} {count:,}" for rule, count in sorted(repairs.items())) or "none"
    whole = sum(not restored.repairs for restored in parses)
    return Score("well-formed outputs", 100 * whole / len(parses), f"per cent; repairs: {listed}")


def _score_trees(trees: Sequence[Node], golds: Sequence[Node]) -> list[Score]:
    return bracketing_scores(*([_as_parse(tree) for tree in side] for side in (golds, trees)))


def _as_parse(tree: Node) -> Parse:
    """Returns a tree as the input of `bracketing_scores`."""
    leaves = list_leaves(tree)
    return Parse([leaf.word for leaf in leaves], [leaf.tag for leaf in leaves], list_spans(tree))


def _restore(tokens: str, words: str) -> Restored:
    """Returns the tree of tokens over words, both separated by blanks."""
    return restore_tree(tokens.split(), words.split())


def _read(text: str) -> Node:
    """Reads a tree from bracketed text.

    Raises:
      UserError: if the text is not exactly one tree.
    """
    trees = list(read_trees([text], "a tree"))
    if len(trees) != 1:
        raise UserError(f"Expected one tree in each text, got {len(trees)} in {text!r}.")
    return trees[0]
