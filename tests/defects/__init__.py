"""Defects D1 to D32 of the earlier system (docs of the study, section 3.5), each with a test of its own.

Each test states one property, shows that a small replica of the old behaviour violates it, and that ours holds it.
"""
