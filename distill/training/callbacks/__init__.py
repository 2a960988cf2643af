"""What happens around the training steps."""
