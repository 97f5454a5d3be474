"""Pure decisions: no clock, no randomness, no socket, no environment; the time and random numbers are arguments."""
