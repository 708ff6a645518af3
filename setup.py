"""Lets tools that call setup.py build the package; everything is in pyproject.toml."""

from setuptools import setup

setup()
