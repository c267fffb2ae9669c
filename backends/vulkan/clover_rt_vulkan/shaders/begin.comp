#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// begin: the deltas of the pass, by one group. Pages in order, since a place may occur twice;
// counts are sums of integers, in which the order does not show.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, page_table_at, counts_at, page_deltas, count_deltas, slot_pages, vocab;
};
READS(0, uint, params)
WRITES(1, uint, page_table)
WRITES(2, uint, counts)
#include "table.glsl"

void main()
{
    if (LID == 0u)
        for (uint i = 0u; i < table_page_deltas(); i++) {
            uint at = page_deltas + 4u * i;
            page_table[page_table_at + table(at) * slot_pages + table(at + 1u)] = table(at + 2u);
        }
    for (uint i = LID; i < table_count_deltas(); i += ITEMS) {
        uint at = count_deltas + 4u * i;
        atomicAdd(counts[counts_at + table(at) * vocab + table(at + 1u)], table(at + 2u));
    }
}
