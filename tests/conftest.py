"""Settings for every test; fixtures live beside the tests that use them."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline and no complaint about slow data: a busy machine is not a failure of the code.
settings.register_profile(
    "ci",
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
