"""What happens around the training steps: one small class per file."""
