"""The pytest plug-in: fixtures for tests of images."""

from __future__ import annotations
