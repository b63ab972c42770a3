"""Arms answer questions; metrics, intervals, tables and reports of what they answered."""
