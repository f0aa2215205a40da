"""Every example config is one that loads, and so is what the documents show of one."""

import re
from pathlib import Path

import pytest
import yaml

from streampipe import config_from, load_config

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
PAGES = sorted((ROOT / "docs").glob("*.md"))
SNIPPET = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_example_config_loads_and_says_its_story_first(path: Path) -> None:
    config = load_config(path)
    assert config.sources
    assert path.read_text().startswith("# ")


def test_there_are_examples_for_both_layouts_and_all_policies() -> None:
    configs = [load_config(path) for path in CONFIGS]
    assert {config.batch.layout for config in configs} == {"thd", "sbhd"}
    assert {config.packing.policy for config in configs} == {"best_fit", "concat", "none"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_a_document_shows_of_a_config_loads(page: Path) -> None:
    for snippet in SNIPPET.findall(page.read_text()):
        shown = yaml.safe_load(snippet)
        assert config_from({"seq_length": 8192, "sources": [{"name": "web", "path": "/data/web"}]} | shown), snippet


def test_there_are_documents_that_show_configs() -> None:
    assert {page.stem for page in PAGES if SNIPPET.search(page.read_text())} >= {"fim", "runs"}
