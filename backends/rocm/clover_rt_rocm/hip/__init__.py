"""The Triton engine: the cuda backend's kernels and device on a torch that is built for ROCm."""
