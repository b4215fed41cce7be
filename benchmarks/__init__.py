"""The project's own benchmarks, which print the tables of README and docs: see README.md here.

They are not part of the package that users install.
"""
