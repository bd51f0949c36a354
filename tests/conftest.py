"""Settings for every test; fixtures live beside the tests that use them."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline and no complaint about slow data: a busy machine is not a failure of the code.
settings.register_profile(
    "fresh", print_blob=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# A run says something about the code alone: the same examples each time. `make soak` draws others.
settings.register_profile("same", settings.get_profile("fresh"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
