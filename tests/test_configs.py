"""Every example config is one that loads."""

from pathlib import Path

import pytest

from streampipe import load_config

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_example_config_loads_and_says_its_story_first(path: Path) -> None:
    config = load_config(path)
    assert config.sources
    assert path.read_text().startswith("# ")


def test_there_are_examples_for_both_layouts_and_all_policies() -> None:
    configs = [load_config(path) for path in CONFIGS]
    assert {config.batch.layout for config in configs} == {"thd", "sbhd"}
    assert {config.packing.policy for config in configs} == {"best_fit", "concat", "none"}
