"""What makes pods of workloads and lets them run: controllers, a scheduler, kubelets."""
