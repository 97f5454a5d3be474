"""Pure decisions: no clock, no chance, no socket, no environment; now and chance are arguments."""
