"""The training split as batches: its corpora, how they are mixed, and each of their segmentations."""

from typing import Any, NamedTuple

from tfm.data.batching import TrainBatches
from tfm.data.config import DataConfig
from tfm.data.source import join
from tfm.data.sources.opening import open_corpora
from tfm.data.subword_sampling import AlternatingBatches, SampledTokenizer, derive_seed
from tfm.data.token_cache import TokenCache


class TrainSplit(NamedTuple):
    """Batches of the training split, and the identity of its pairs."""

    batches: TrainBatches | AlternatingBatches
    fingerprint: str


def open_train_split(
    config: DataConfig, seed: int, tokenizer: Any, *, host_index: int = 0, host_count: int = 1
) -> TrainSplit:
    """Tokenises the training split where it is not in the cache, once or once for each segmentation.

    Args:
      config: the data section.
      seed: of the order and of the segmentations.
      tokenizer: of the run.
      host_index, host_count: this host among those that share each batch.

    Raises:
      UserError: the data cannot be used, or `config.mixing` has more or fewer shares than corpora.
    """
    corpora = open_corpora(config, "train")
    pairs, sizes = join(corpora), [len(corpus) for corpus in corpora]

    def open_batches(tokenizer, seed):
        cache = TokenCache.open(pairs, tokenizer, config.cache)
        hosts = {"host_index": host_index, "host_count": host_count}
        return TrainBatches(cache, config, seed, corpora=sizes, **hosts)

    if not config.subword_dropout:
        return TrainSplit(open_batches(tokenizer, seed), pairs.fingerprint)
    seeds = [derive_seed(seed, version) for version in range(config.subword_samples)]
    versions = [open_batches(SampledTokenizer(tokenizer, config.subword_dropout, own), own) for own in seeds]
    return TrainSplit(AlternatingBatches(versions), pairs.fingerprint)
