"""Creates and runs the pods of workloads: controllers, a scheduler, kubelets."""
