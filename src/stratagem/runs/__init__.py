"""The folder of a run: recipe, metrics, checkpoints, trackers."""
