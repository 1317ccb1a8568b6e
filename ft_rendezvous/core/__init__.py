"""Pure decisions: no store, no clock, no log, no torch."""
