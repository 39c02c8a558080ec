"""What a program needs in a cluster: its rights, definitions and manifests."""
