"""The report as one HTML file that asks the network for nothing: in come a report's contents, out goes the page."""
