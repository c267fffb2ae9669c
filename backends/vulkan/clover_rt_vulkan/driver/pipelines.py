"""Pipelines: compiled shaders with their layouts, and the cache of them on disk.

The cache lies in `clover-rt/vulkan` of the user's cache folder (XDG_CACHE_HOME), one file a device
and driver; a file begins with a hash of the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vulkan
from vulkan import ffi, lib

from clover_rt.cache import cache_folder, read_checked, write_checked
from clover_rt_vulkan.driver import Shape
from clover_rt_vulkan.driver.vk import NULL, call, made, struct


@dataclass(frozen=True, slots=True)
class Layout:
    """What pipelines of one shape share: the layout of their buffers, and that of a pipeline."""

    buffers: Any
    pipeline: Any


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled shader with its constants."""

    handle: Any
    layout: Layout


class Pipelines:
    """The pipelines of a device, compiled as they are asked for.

    about    what compiled code is valid for: device and driver
    folder   of the cache; None: the user's
    compiled how many pipelines were made
    """

    def __init__(self, device: Any, about: str, folder: Path | None = None) -> None:
        self.device = device
        self.compiled = 0
        name = hashlib.sha256(about.encode()).hexdigest()
        self.path = (cache_folder("vulkan") if folder is None else folder) / f"{name}.bin"
        self._saved = 0
        self._layouts: dict[Shape, Layout] = {}
        self._made: dict[Any, Pipeline] = {}
        data = read_checked(self.path) or b""
        raw = ffi.from_buffer(data)
        info = struct(
            "PipelineCacheCreateInfo",
            initialDataSize=len(data),
            pInitialData=ffi.cast("void*", raw),
        )
        self._cache = made("vkCreatePipelineCache", device, info)

    def get(self, code: bytes, shape: Shape, constants: Mapping[int, int]) -> Pipeline:
        """Return the pipeline of a shader with these constants, compiled once."""
        key = (hashlib.sha256(code).digest(), shape, tuple(sorted(constants.items())))
        if key not in self._made:
            self._made[key] = self._compile(code, self._layout(shape), constants)
            self.compiled += 1
        return self._made[key]

    def save(self) -> None:
        """Write the cache where something was compiled since the last time."""
        if self.compiled == self._saved:
            return
        self._saved = self.compiled
        size = ffi.new("size_t*")
        call("vkGetPipelineCacheData", self.device, self._cache, size, NULL)
        data = ffi.new("char[]", size[0])
        call("vkGetPipelineCacheData", self.device, self._cache, size, data)
        write_checked(self.path, bytes(ffi.buffer(data, size[0])))

    def close(self) -> None:
        for pipeline in self._made.values():
            lib.vkDestroyPipeline(self.device, pipeline.handle, NULL)
        for layout in self._layouts.values():
            lib.vkDestroyPipelineLayout(self.device, layout.pipeline, NULL)
            lib.vkDestroyDescriptorSetLayout(self.device, layout.buffers, NULL)
        lib.vkDestroyPipelineCache(self.device, self._cache, NULL)
        self._made.clear()
        self._layouts.clear()

    def _layout(self, shape: Shape) -> Layout:
        if shape not in self._layouts:
            slots = [
                struct(
                    "DescriptorSetLayoutBinding",
                    binding=i,
                    descriptorType=vulkan.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                    descriptorCount=1,
                    stageFlags=vulkan.VK_SHADER_STAGE_COMPUTE_BIT,
                )
                for i in range(shape.buffers)
            ]
            info = struct("DescriptorSetLayoutCreateInfo", bindingCount=len(slots), pBindings=slots)
            buffers = made("vkCreateDescriptorSetLayout", self.device, info)
            push = struct(
                "PushConstantRange", stageFlags=vulkan.VK_SHADER_STAGE_COMPUTE_BIT, size=shape.push
            )
            ranges = [push] if shape.push else []
            info = struct(
                "PipelineLayoutCreateInfo",
                setLayoutCount=1,
                pSetLayouts=[buffers],
                pushConstantRangeCount=len(ranges),
                pPushConstantRanges=ranges,
            )
            pipeline = made("vkCreatePipelineLayout", self.device, info)
            self._layouts[shape] = Layout(buffers, pipeline)
        return self._layouts[shape]

    def _compile(self, code: bytes, layout: Layout, constants: Mapping[int, int]) -> Pipeline:
        # the copy is aligned, which a mapped file's bytes need not be
        words = ffi.new("uint32_t[]", len(code) // 4)
        ffi.buffer(words)[:] = code
        module = made(
            "vkCreateShaderModule",
            self.device,
            struct("ShaderModuleCreateInfo", codeSize=len(code), pCode=words),
        )
        try:
            return Pipeline(self._pipeline(module, layout, constants), layout)
        finally:
            lib.vkDestroyShaderModule(self.device, module, NULL)

    def _pipeline(self, module: Any, layout: Layout, constants: Mapping[int, int]) -> Any:
        values = ffi.new("uint32_t[]", list(constants.values()))
        entries = [
            struct("SpecializationMapEntry", constantID=key, offset=4 * i, size=4)
            for i, key in enumerate(constants)
        ]
        special = struct(
            "SpecializationInfo",
            mapEntryCount=len(entries),
            pMapEntries=entries,
            dataSize=4 * len(entries),
            pData=values,
        )
        stage = struct(
            "PipelineShaderStageCreateInfo",
            stage=vulkan.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module,
            pName="main",
            pSpecializationInfo=special,
        )
        info = struct("ComputePipelineCreateInfo", stage=stage, layout=layout.pipeline)
        out = ffi.new("VkPipeline*")
        call("vkCreateComputePipelines", self.device, self._cache, 1, info, NULL, out)
        return out[0]
