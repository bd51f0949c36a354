"""Sessions: the state of a conversation, turn after turn."""
