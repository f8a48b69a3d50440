import os

os.environ.setdefault("DO_NOT_TRACK", "1")  # Prefect's usage statistics, and its notice: before it is imported
