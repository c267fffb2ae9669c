// The step table as 32-bit words, and functions that several kernels use. Sources are compiled
// behind this one, and this one behind what the device has (capabilities.py): TEAMS is defined
// where there are subgroups, DOT4 where there are integer dots.
//
// Nothing is contracted that is not written as fma: a row's bits shall not depend on what the
// compiler found to merge.
//
// A group without work goes through its barriers with loops of length 0 and never returns before
// one: PoCL 3.0 makes wrong code of that.
#pragma OPENCL FP_CONTRACT OFF

#define TABLE_ROWS 1
#define TABLE_SEGMENTS 2
#define TABLE_WANTED 3
#define TABLE_PAGE_DELTAS 4
#define TABLE_COUNT_DELTAS 5
#define TABLE_ADVANCES 6

#define COMMIT 0
#define PREVIEW 1
#define VERIFY 2
#define PAGE_ROWS 64

#define GROUP_OF(n) __attribute__((reqd_work_group_size(n, 1, 1)))

typedef struct {
    int kind;
    int slot;
    int row0;
    int rows;
    int position;
} Segment;

Segment segment_at(global const int *table, int at_segments, int i)
{
    global const int *words = table + at_segments + 8 * i;
    Segment s = {words[0], words[1], words[2], words[3], words[4]};
    return s;
}

// the place of a slot's row in the pools, in rows
long pool_row(global const int *pages, int slot_pages, int slot, int place)
{
    long page = pages[(long)slot * slot_pages + place / PAGE_ROWS];
    return page * PAGE_ROWS + place % PAGE_ROWS;
}

float sigmoid(float x)
{
    float e = exp(-fabs(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

float silu(float x)
{
    return x * sigmoid(x);
}

// the sum of one number of each work-item, in one order; `room` has a number a work-item
float sum_of_items(local float *room, float x)
{
#ifdef TEAMS
    x = LANES_SUM(x);
    if (LANE == 0)
        room[TEAM] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    float total = 0.0f;
    for (int team = 0; team < TEAMS; team++)
        total += room[team];
#else
    int lid = get_local_id(0);
    room[lid] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_way = get_local_size(0) / 2; half_way > 0; half_way /= 2) {
        if (lid < half_way)
            room[lid] += room[lid + half_way];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float total = room[0];
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    return total;
}

float max_of_items(local float *room, float x)
{
#ifdef TEAMS
    x = LANES_MAX(x);
    if (LANE == 0)
        room[TEAM] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    float top = room[0];
    for (int team = 1; team < TEAMS; team++)
        top = fmax(top, room[team]);
#else
    int lid = get_local_id(0);
    room[lid] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_way = get_local_size(0) / 2; half_way > 0; half_way /= 2) {
        if (lid < half_way)
            room[lid] = fmax(room[lid], room[lid + half_way]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float top = room[0];
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    return top;
}

// a bfloat16 number, and the nearest one to a float32 (ties to even, NaN stays NaN)
float from_bf16(ushort bits)
{
    return as_float((uint)bits << 16);
}

ushort to_bf16(float x)
{
    uint bits = as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (ushort)((bits >> 16) | 0x40u);
    return (ushort)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// numbers of the KV pools
#ifdef KV_BF16
typedef ushort Kv;
#define FROM_KV(x) from_bf16(x)
#define TO_KV(x) to_bf16(x)
#define ROUND_KV(x) from_bf16(to_bf16(x))
#else
typedef float Kv;
#define FROM_KV(x) (x)
#define TO_KV(x) (x)
#define ROUND_KV(x) (x)
#endif
