"""Figures on paper: what a figure shows becomes marks on a sheet, and a sheet becomes SVG, PDF and PNG files.

In come figures as data; out go bytes, the same for the same data. Text stays text, and fonts are inside the files.
"""
