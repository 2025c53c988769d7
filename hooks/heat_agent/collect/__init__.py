"""os-collect-config: poll the sources of metadata, keep what they say, run a command on changes."""
