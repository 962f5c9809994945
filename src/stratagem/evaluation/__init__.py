"""Fixed panels, statistics, tables, figures, published records."""
