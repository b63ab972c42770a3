"""The report: run folders in; tables, pictures and one self-contained page out."""
