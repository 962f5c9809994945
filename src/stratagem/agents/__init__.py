"""Who acts: policies of plain code and language agents."""
