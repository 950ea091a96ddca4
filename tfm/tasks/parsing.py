"""Constituency parsing (section 6.3): words in, the tokens of their tree out, scored by labelled bracketing.

A translation from words into linearized trees (Vinyals et al. 2015, "Grammar as a Foreign Language"). Model,
loss, batches and search are those of `tfm.tasks.translation`; here are the way back to trees, and scores.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from tfm.arguments import check_texts
from tfm.data.config import DataConfig
from tfm.data.sources.opening import fingerprint_texts, read_sides
from tfm.data.trees import (
    Node,
    Restored,
    format_tree,
    linearize,
    list_leaves,
    list_spans,
    read_trees,
    restore_tree,
    split_words,
)
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.evaluation.bracketing import Parse, bracketing_scores
from tfm.evaluation.score import Score
from tfm.fields import CHANGEABLE, NEVER, field
from tfm.tasks import translation
from tfm.tasks.translation.pipeline import Hypothesis
from tfm.tasks.translation.task import prepare_tokenizer
from tfm.training.task import Best, Report, parameters_of

DATA = DataConfig(kind="treebank", source_language="words", target_language="trees", vocabulary_size=16_000)
# Section 6.3: beam 21, length penalty 0.3, outputs of at most the input's length + 300.
DECODING = DecodingConfig(beam_size=21, length_penalty=0.3, max_extra_tokens=300)
SCORE_NAMES = {"bracketing F1, all": "f1", "complete match": "complete_match"}  # those during training
fingerprint, plan_model = translation.fingerprint, translation.plan_model


@dataclasses.dataclass(frozen=True)
class Config(translation.Config):
    """A parsing run; the defaults are the paper's base model, with its vocabulary and search for parsing."""

    task: str = field("parsing", "A module of tfm.tasks.", resume=NEVER, warm_start=False)
    data: DataConfig = field(DATA, "Where the trees come from and how they are batched.")
    decoding: DecodingConfig = field(DECODING, "The search of evaluation and parsing.")
    validation_sentences: int = field(
        500,
        "So many of the validation split are parsed, greedily, for the F1 during training, over all "
        "sentences, which picks the best checkpoint; its loss is over all that fit into data.max_length.",
        least=0,
        most=10**9,
        unit="sentences",
        resume=CHANGEABLE,
    )

    SCORED_BY_BLEU: ClassVar[bool] = False


class ParseHypothesis(NamedTuple):
    """A parse; its score is that of the `tfm.tasks.translation.pipeline.Hypothesis`."""

    restored: Restored
    score: float


class Parsing(translation.Translation):
    """A task that translates words into trees; for its attributes see `Translation`."""

    best = Best("validation/f1", "max")

    def parse(
        self, params: Any, sentences: Iterable[str], decoding: DecodingConfig | None = None, **options: Any
    ) -> list[list[ParseHypothesis]]:
        """The best parses of sentences, each a tree over the words of its own sentence, see `restore_tree`.

        Args:
          params: of the model.
          sentences: words separated by blanks, divided as those of the treebank.
          decoding: the search; that of the config for None.
          options: see `tfm.tasks.translation.pipeline.translate_texts`; prefixes are tokens of trees.
        """
        words = [split_words(sentence) for sentence in check_texts("sentences", sentences)]
        found = super().hypotheses(params, [" ".join(each) for each in words], decoding, **options)
        return [
            [ParseHypothesis(restore_tree(one.text.split(), each), one.score) for one in hypotheses]
            for each, hypotheses in zip(words, found, strict=True)
        ]

    def hypotheses(
        self, params: Any, sentences: Iterable[str], decoding: DecodingConfig | None = None, **options: Any
    ) -> list[list[Hypothesis]]:
        """As `parse`, with the trees as bracketed text; that of an empty sentence is empty."""
        found = self.parse(params, sentences, decoding, **options)
        return [[Hypothesis(_format(one.restored.tree), one.score) for one in each] for each in found]

    def score(self, params: Any, sources: Iterable[str], targets: Iterable[str]) -> list[np.ndarray]:
        """Log-probabilities of the tokens of each tree given its sentence: a float32 array for each.

        Args:
          params: of the model.
          sources: sentences.
          targets: their trees as bracketed text, one each.

        Raises:
          UserError: no lists of texts, or of unlike length, or a text that is not one tree.
        """
        tokens = [" ".join(linearize(_read(text))) for text in check_texts("targets", targets)]
        sentences = [" ".join(split_words(each)) for each in check_texts("sources", sources)]
        return super().score(params, sentences, tokens)

    def align(self, params: Any, sources: Iterable[str], targets: Iterable[str]) -> NoReturn:
        """Raises a UserError: brackets stand for no words."""
        raise UserError("A parse has no word alignment: ask for none.")

    def score_hypotheses(
        self, hypotheses: list[str], sources: Sequence[str], references: Sequence[str]
    ) -> dict[str, float]:
        """{"f1", "complete_match": per cent} of trees as bracketed text; references are tokens of trees."""
        golds = map(_gold_tree, references, sources)
        found = _score_trees(list(map(_read, hypotheses)), list(golds))
        return {SCORE_NAMES[score.name]: score.value for score in found if score.name in SCORE_NAMES}

    def show_reference(self, source: str, reference: str) -> str:
        """The tree of the treebank as bracketed text."""
        return format_tree(_gold_tree(reference, source))

    def target_tokens(self, hypothesis: str) -> str:
        """The tokens of a tree in bracketed text; none of an empty one."""
        return " ".join(linearize(_read(hypothesis))) if hypothesis else ""

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields parses, bracketing scores, and the share of well-formed outputs."""
        params = parameters_of(variables)
        sources, references = read_sides(self.config.data, split)
        began = time.monotonic()
        found = [hypotheses[0].restored for hypotheses in self.parse(params, sources)]
        rate = len(sources) / (time.monotonic() - began)
        trees = [restored.tree for restored in found]
        golds = list(map(_gold_tree, references, sources))
        texts = [sources, *([format_tree(tree) for tree in side] for side in (golds, trees))]
        names = ("sentence", "reference", "parse")
        yield Report(
            texts[-1],
            [*_score_trees(trees, golds), count_well_formed(found)],
            [dict(zip(names, each, strict=True)) for each in zip(*texts, strict=True)],
            dataclasses.asdict(self.config.decoding),
            rate,
            fingerprint_texts(sources, references),
        )


def create(config: Config, workdir: str, *, new: bool = True) -> Parsing:
    """The task of a run; raises as `tfm.tasks.translation.task.prepare_tokenizer`."""
    return Parsing(config, prepare_tokenizer(config, workdir, new=new))


def count_well_formed(found: Sequence[Restored]) -> Score:
    """Per cent of outputs that were trees over their words as they stood; the signature counts repairs."""
    repairs = Counter(rule for restored in found for rule in restored.repairs)
    listed = ", ".join(f"{rule} {count:,}" for rule, count in sorted(repairs.items())) or "none"
    whole = sum(not restored.repairs for restored in found)
    return Score("well-formed outputs", 100 * whole / len(found), f"per cent; repairs: {listed}")


def _score_trees(trees, golds):
    return bracketing_scores(*([_as_parse(tree) for tree in side] for side in (golds, trees)))


def _as_parse(tree):
    leaves = list_leaves(tree)
    return Parse([leaf.word for leaf in leaves], [leaf.tag for leaf in leaves], list_spans(tree))


def _gold_tree(reference, source):
    return restore_tree(reference.split(), source.split()).tree


def _format(tree: Node) -> str:
    return format_tree(tree) if tree.children else ""


def _read(text):
    """The tree of bracketed text.

    Raises:
      UserError: it is not one tree.
    """
    trees = list(read_trees([text], "a tree"))
    if len(trees) != 1:
        raise UserError(f"Expected one tree in each text, got {len(trees)} in {text!r}.")
    return trees[0]
