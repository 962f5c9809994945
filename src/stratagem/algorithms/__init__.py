"""The learning algorithms: one paper per file, shared pure maths beside them."""
