#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// coreset, second part: a group a segment adds up its rows' shares in row order, sorts the masses
// and keeps experts until top_p is reached. Local memory: 8 bytes an expert.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 256;
layout(push_constant) uniform Push
{
    uint params_at, shares_at, allowed_at, segments, E;
    float top_p;
};
READS(0, uint, params)
READS(1, float, shares)
WRITES(2, uint, allowed)
#define KEYS EXPERTS
#include "rank.glsl"
#include "reduce.glsl"
#include "table.glsl"
#include "segment.glsl"
#include "cut.glsl"

void main()
{
    for (uint i = gl_WorkGroupID.x; i < table_segments(); i += gl_NumWorkGroups.x) {
        Segment s = segment_at(i);
        bool is_cut = s.kind == PREVIEW && top_p < 1.0 && s.rows > 0u;
        if (is_cut) {
            float own = 0.0;
            for (uint e = LID; e < E; e += ITEMS) {
                float mass = 0.0;
                for (uint t = 0u; t < s.rows; t++)
                    mass += shares[shares_at + (s.row0 + t) * E + e];
                keys[e] = key_of(mass);
                own += mass;
            }
            cut(own);
        }
        // a byte belongs to one item, its word to several
        for (uint e = LID; e < E; e += ITEMS) {
            uint at = i * E + e, shift = 8u * (at & 3u);
            uint may = uint(!is_cut || rank_of(E, e) < kept);
            atomicAnd(allowed[allowed_at + at / 4u], ~(0xffu << shift));
            atomicOr(allowed[allowed_at + at / 4u], may << shift);
        }
        barrier();
    }
}
