"""What is kept, and the rules for it. Imports nothing of ours, and torch only where tensors are read or written."""
