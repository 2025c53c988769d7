"""os-refresh-config: the scripts of each phase, in order, by one process at a time."""
