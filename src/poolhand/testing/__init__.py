"""What tests of poolhand, and of programs built on it, bring along."""

from poolhand.testing.restart import simulate_restart
from poolhand.testing.seeded import SeededLoop, SeededRuntime, Stalled, run_seeded

__all__ = ["SeededLoop", "SeededRuntime", "Stalled", "run_seeded", "simulate_restart"]
