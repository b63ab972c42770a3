"""Tasks with answers: where their questions come from, and how an answer is scored."""
