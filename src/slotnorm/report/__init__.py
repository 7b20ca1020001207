"""What the study draws: pictures, curves, tables and pages, from runs and rows."""
