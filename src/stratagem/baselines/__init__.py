"""Players that are no language models, to compare with."""
