"""The parts of the demo: the tenants, their agents, and the ways to watch them."""
