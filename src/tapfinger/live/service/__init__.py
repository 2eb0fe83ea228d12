"""The running coordinator: its loops, its requests from people and agents, and leadership."""
