"""The corpora there are.

Another one is a file with a `Corpus` in it and a line here, or, from a package of one's own, an entry point of the
group `shardtools.corpora`; those are asked first, by name.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from shardtools.corpus.corpus import Corpus
from shardtools.corpus.formats.array import ARRAY
from shardtools.corpus.formats.arrow import ARROW
from shardtools.corpus.formats.hub import HUB
from shardtools.corpus.formats.lines import LINES
from shardtools.corpus.formats.parquet import PARQUET
from shardtools.corpus.formats.plain import PLAIN
from shardtools.corpus.formats.tars import TARS
from streampipe.errors import ConfigError

BUILT_IN = (LINES, ARRAY, PARQUET, ARROW, TARS, HUB, PLAIN)
"""In the order in which they are asked for a file; the last takes any."""
GROUP = "shardtools.corpora"


@cache
def known_corpora() -> dict[str, Corpus]:
    """Return the installed corpora, then the built-in ones, by kind.

    Raises:
        ConfigError: if an entry point cannot be loaded, is no corpus, or takes a name that is taken.
    """
    corpora: dict[str, Corpus] = {}
    built_in = {corpus.kind for corpus in BUILT_IN}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        corpus = _load(point)
        if corpus.kind in corpora or corpus.kind in built_in:
            raise ConfigError(f"entry point {GROUP}: {point.name}: there is a corpus {corpus.kind!r}; rename it")
        corpora[corpus.kind] = corpus
    return {**corpora, **{corpus.kind: corpus for corpus in BUILT_IN}}


def corpus_of(kind: str) -> Corpus:
    """Return the corpus of a file.

    Raises:
        ConfigError: if it is not installed here.
    """
    try:
        return known_corpora()[kind]
    except KeyError:
        raise ConfigError(f"no corpus {kind!r} is installed here; install its package on every machine") from None


def _load(point: EntryPoint) -> Corpus:
    try:
        corpus = point.load()
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise ConfigError(
            f"entry point {GROUP}: {point.name}: cannot be loaded ({error}); mend or remove its package"
        ) from error
    if not isinstance(corpus, Corpus):
        raise ConfigError(f"entry point {GROUP}: {point.name}: expected a Corpus, but got {type(corpus).__name__}")
    return corpus
