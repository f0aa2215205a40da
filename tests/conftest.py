"""What all tests share: how hard hypothesis looks, and one thread a process."""

import os

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
