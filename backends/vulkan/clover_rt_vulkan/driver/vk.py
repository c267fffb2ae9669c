"""The package `vulkan` through its cffi layer: structures, results, and calls that are checked.

The package's own constructors free the memory of a nested structure's pointers too early, so
structures are made here: each keeps alive what its fields point to, also through structures that
were copied into it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import vulkan
from vulkan import ffi, lib

from clover_rt_vulkan.driver import DriverFailure, Trouble

API_1_2 = 1 << 22 | 2 << 12
NULL = ffi.NULL
TROUBLES = {
    vulkan.VK_ERROR_OUT_OF_HOST_MEMORY: Trouble.MEMORY,
    vulkan.VK_ERROR_OUT_OF_DEVICE_MEMORY: Trouble.MEMORY,
    vulkan.VK_ERROR_TOO_MANY_OBJECTS: Trouble.MEMORY,
    vulkan.VK_ERROR_DEVICE_LOST: Trouble.LOST,
}
_kept: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def struct(kind: str, **fields: Any) -> Any:
    """Return a pointer to a new structure `Vk{kind}` with its type and these fields.

    A text becomes a C string, a list an array; a structure is taken by value or by address, as the
    field asks.
    """
    made = ffi.new(f"Vk{kind}*")
    types = dict(ffi.typeof(made).item.fields)
    held: list[Any] = []
    if "sType" in types:
        made.sType = getattr(vulkan, f"VK_STRUCTURE_TYPE_{_shouted(kind)}")
    for name, value in fields.items():
        field = types[name].type
        if field.kind == "pointer":
            value = _pointer(value, field, held)
        elif field.kind == "struct":
            held.append(value)
            value = value[0]
        setattr(made, name, value)
    _kept[made] = held
    return made


def call(name: str, *arguments: Any, allowed: tuple[int, ...] = ()) -> int:
    """Call a Vulkan function and return its result; DriverFailure where it is an error.

    allowed  results besides success that are returned
    """
    result: int = getattr(lib, name)(*arguments)
    if result != vulkan.VK_SUCCESS and result not in allowed:
        cause = _results().get(result, f"result {result}")
        raise DriverFailure(TROUBLES.get(result, Trouble.OTHER), name, cause)
    return result


def made(name: str, device: Any, info: Any) -> Any:
    """Return the handle that vkCreateX(device, info, no allocator, &handle) makes."""
    kind = re.sub("^vk(Create|Allocate)", "Vk", name)
    kind = {"VkMemory": "VkDeviceMemory"}.get(kind, kind)
    out = ffi.new(f"{kind}*")
    call(name, device, info, NULL, out)
    return out[0]


def listed(name: str, kind: str, *arguments: Any) -> list[Any]:
    """Return what a function lists that is called twice: for the count, then for the items."""
    count = ffi.new("uint32_t*")
    result = getattr(lib, name)(*arguments, count, NULL)
    _checked(name, result)
    items = ffi.new(f"{kind}[]", max(count[0], 1))
    _checked(name, getattr(lib, name)(*arguments, count, items))
    found = list(items[0 : count[0]])
    # items of a structure's kind are views of the array
    for item in found:
        if ffi.typeof(item).kind == "struct":
            _kept[item] = [items]
    return found


def text(chars: Any) -> str:
    """Return a C string of a structure's field."""
    return bytes(ffi.string(chars)).decode(errors="replace")


def _checked(name: str, result: int | None) -> None:
    # functions that only list properties return nothing
    if result:
        cause = _results().get(result, f"result {result}")
        raise DriverFailure(TROUBLES.get(result, Trouble.OTHER), name, cause)


def _pointer(value: Any, field: Any, held: list[Any]) -> Any:
    if isinstance(value, str):
        value = ffi.new("char[]", value.encode())
    elif isinstance(value, list):
        item = field.item
        entries = [_pointer(v, item, held) if item.kind == "pointer" else v for v in value]
        held += entries
        if item.kind == "struct":
            entries = [e[0] for e in entries]
        value = ffi.new(f"{item.cname}[]", entries) if entries else NULL
    held.append(value)
    return value


@cache
def _shouted(kind: str) -> str:
    """Return a structure's name as its type's constant has it."""
    ends = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[a-z])(?=[0-9])|(?<=[A-Z])(?=[A-Z][a-z])"
    words = re.sub(ends, "_", kind).upper()
    return re.sub(r"VULKAN_1([123])", r"VULKAN_1_\1", words)


@cache
def _results() -> dict[int, str]:
    return {v: n for n, v in vars(vulkan).items() if n.startswith("VK_ERROR_")}
