"""Defects D1 to D32 of the earlier system, each with a test that ours does not have it; README.md is their table."""
