"""Trajectories on disk, demonstrations."""
