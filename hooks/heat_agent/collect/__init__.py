"""os-collect-config: poll the sources of metadata, cache it, run a command on changes."""
