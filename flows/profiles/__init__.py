"""Studies as YAML."""
