"""The report: run folders in; tables, plots and one self-contained page out."""
