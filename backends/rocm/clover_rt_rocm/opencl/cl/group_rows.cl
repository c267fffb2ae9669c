// group_rows: a group of 64 work-items for an expert counts the pairs of its own and of lower
// experts, so that it knows where its part starts without waiting for others. Each work-item has
// consecutive pairs, so the order inside an expert stays. The last group fills the rest with -1.
kernel GROUP_OF(64) void group_rows(global const int *table, global const int *ids,
                                    global int *order, global int *offsets, int E, int R)
{
    local int own[64], lower[64];
    int lid = get_local_id(0), e = get_group_id(0);
    int pairs = table[TABLE_ROWS] * R, each = (pairs + 63) / 64;
    int lo = min(lid * each, pairs), hi = min(lo + each, pairs);
    int mine = 0, before = 0;
    for (int p = lo; p < hi; p++) {
        mine += ids[p] == e;
        before += ids[p] >= 0 && ids[p] < e;
    }
    own[lid] = mine;
    lower[lid] = before;
    barrier(CLK_LOCAL_MEM_FENCE);
    int start = 0, place = 0, total = 0;
    for (int i = 0; i < 64; i++) {
        start += lower[i];
        place += i < lid ? own[i] : 0;
        total += own[i];
    }
    place += start;
    for (int p = lo; p < hi; p++)
        if (ids[p] == e)
            order[place++] = p;
    if (lid == 0) {
        offsets[e + 1] = start + total;
        if (e == 0)
            offsets[0] = 0;
    }
    if (e == E - 1)
        for (int p = start + total + lid; p < pairs; p += 64)
            order[p] = -1;
}
