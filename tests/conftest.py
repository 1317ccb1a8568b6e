"""What all tests share: a resolver that gives up soon, and Hypothesis without a stopwatch."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# TCPStore looks up every client's name on its only thread; a machine without a reverse entry for loopback would
# pause for 5 s each time.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# The machine is shared, so how long an example takes says nothing; what an example finds must be found again.
settings.register_profile("ft", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ft")
