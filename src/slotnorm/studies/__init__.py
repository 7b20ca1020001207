"""Many runs: trained side by side, and each one's rows made.

In come experiments and folders of runs; out go finished runs and, beside each, the rows that reports read.
"""
