"""Goes through everything that can happen in a small cluster of real cores: see ``docs/model-check.md``."""
