"""What devices share whose memory is buffers of a limited size; their authors may build on it.

BufferKernel  a kernel's scratch arrays, and the bytes of its weights
in_parts      weights cut by rows into buffers that the device can have
"""

from clover_rt.buffers.kernel import BufferKernel
from clover_rt.buffers.parts import BufferDevice, Part, in_parts

__all__ = ["BufferDevice", "BufferKernel", "Part", "in_parts"]
