"""Files that are whole or not there, and know when they were damaged.

In come bytes, arrays, dataclasses; out go files that were flushed and read back before they got their name, and
whatever is read is checked against its seal first.
"""
