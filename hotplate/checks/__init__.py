"""Run the user's own checks in a booted guest: executables, and files of goss."""
