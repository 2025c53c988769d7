#!/bin/sh
# The script that the sample template asks for: speaks on both streams.
echo "web server ready"
echo "nothing was served yet" >&2
