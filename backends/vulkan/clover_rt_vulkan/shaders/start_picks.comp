#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// confidence_topk: the first row of picks: the finite flag, set, and zeros.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint picks_at, words;
};
WRITES(0, uint, picks)

void main()
{
    for (uint i = LID; i < words; i += ITEMS)
        picks[picks_at + i] = uint(i == 0u);
}
