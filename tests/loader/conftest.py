"""Two sources of different sizes, written once."""

from pathlib import Path

import pytest
from streams import CODE, WEB, write_source


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources `web` (number 0) and `code` (number 1)."""
    folder = tmp_path_factory.mktemp("corpora")
    write_source(folder / "web", 0, WEB)
    write_source(folder / "code", 1, CODE)
    return folder
