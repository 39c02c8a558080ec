"""What a new cluster has before any client has made anything."""
