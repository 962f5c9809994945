"""Rewards that the game does not give: format penalties."""
