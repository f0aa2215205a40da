"""What all tests share: how hard hypothesis looks, and one thread a process."""

import os

import pytest
from hypothesis import HealthCheck, settings

# `ci` looks at the same, bounded set of examples every time; HYPOTHESIS_PROFILE=explore looks at many new ones.
settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=50,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Ranks and workers are processes here: with a thread pool in each they would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is only asked when a test wants to know."""
    wanting = [item for item in items if "gpu" in item.keywords]
    if not wanting:
        return
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
