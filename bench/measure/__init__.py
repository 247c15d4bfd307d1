"""What is measured inside a rank: time, memory and traffic, as context managers that yield plain values."""
