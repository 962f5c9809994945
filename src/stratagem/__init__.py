"""Post-train small language models to make decisions over many steps, and prove whether they improved."""

__version__ = "0.1.0"
