"""What an object must keep before it is stored."""
