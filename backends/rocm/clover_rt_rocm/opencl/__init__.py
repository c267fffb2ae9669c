"""The OpenCL engine: primitives in OpenCL C 1.2 through pyopencl."""
