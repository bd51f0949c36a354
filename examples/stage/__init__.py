"""What the demo is made of: the tenants, their agents, and the ways to watch them."""
