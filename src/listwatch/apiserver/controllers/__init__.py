"""What changes objects by itself, as the controllers beside a real API server do."""
