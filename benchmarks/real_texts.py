"""Real documents in many languages, of people and of machines, for what is measured on text.

Files are read in an order that depends on their names alone, kind after kind in turns, and cut where paragraphs or
functions end, into documents of a few bytes to a few thousand characters. The catalogs of translations that Unix
systems and Python packages carry (`.mo`, `.po`) give text in a hundred languages.
"""

import gettext
import hashlib
import json
import site
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from streampipe.rng import raw_words

KINDS = ("py", "js", "json", "md", "rst", "txt", "html", "h", "po", "mo", "yaml", "xml")
FOLDERS = [Path(json.__file__).parents[1], *map(Path, site.getsitepackages()), Path("/usr/share"), Path("/usr/include")]
# Characters of a file that are read, so that no file is much of the whole.
_READ = 60_000


def real_documents(folders: list[Path], count: int, skip: int = 0, kinds: Sequence[str] = KINDS) -> Iterator[str]:
    """Return documents of the files under some folders; `skip` leaves the first out, to go on where a run ended."""
    turns = [_documents(kind, folders) for kind in kinds]
    given = 0
    while turns and given < skip + count:
        for turn in list(turns):
            text = next(turn, None)
            if text is None:
                turns.remove(turn)
                continue
            given += 1
            if skip < given <= skip + count:
                yield text


def _documents(kind: str, folders: list[Path]) -> Iterator[str]:
    found = {path for folder in folders for path in folder.rglob(f"*.{kind}") if path.is_file()}
    names = sorted((hashlib.blake2b(f"{p.parent.name}/{p.name}".encode()).digest(), str(p)) for p in found)
    seen: set[bytes] = set()
    for word, name in names:
        text = _text(Path(name))
        content = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if content not in seen and "\ufffd" not in text:
            seen.add(content)
            yield from _cut(text, word.hex())


def _text(path: Path) -> str:
    try:
        if path.suffix != ".mo":
            with path.open(encoding="utf-8", errors="replace", newline="") as file:
                return file.read(_READ)
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)
        return "\n".join(str(text) for text in vars(catalog)["_catalog"].values())[:_READ]
    except (OSError, ValueError, LookupError):
        return ""


def _cut(text: str, name: str) -> Iterator[str]:
    """Cut a text at blank lines, else at line breaks, else at spaces, into documents of 7 to 8,000 characters or so."""
    words = raw_words(len(text) // 2 + 1, "real documents", name)
    sizes = np.exp(5.5 + 7 * (np.float64(words >> np.uint64(32)) / 2**32 - 0.5)).astype(int).tolist()
    at = number = 0
    while at < len(text):
        least = at + sizes[number]
        ends = [text.find(border, least, least + sizes[number] + 10) for border in ("\n\n", "\n", " ")]
        end = next((place + 1 for place in ends if place >= 0), least)
        yield text[at:end]
        at, number = end, number + 1
