"""What is shown: tables, curves, pictures, claims and pages, from runs, rows and models; and masks of one's own images.

In come folders of runs with their rows; out go files. No metric is computed here.
"""
