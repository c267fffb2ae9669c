// router_topk: 64 work-items for a row. An expert's rank is the number of experts before it, so
// ranks are distinct and no order of work shows. Local memory: 4 bytes an expert and a
// choice.
kernel GROUP_OF(64) void router_topk(global const int *table, int at_owner,
                                     global const float *logits, global const uchar *allowed,
                                     int has_allowed, global int *ids, global float *weights,
                                     int E, int R, local uint *keys, local int *chosen)
{
    int lid = get_local_id(0), row = get_group_id(0);
    int is_live = row < table[TABLE_ROWS], experts = is_live ? E : 0, choices = is_live ? R : 0;
    global const float *own = logits + (long)row * E;
    global const uchar *may = allowed + (long)(is_live ? table[at_owner + row] : 0) * E;
    for (int e = lid; e < experts; e += 64)
        keys[e] = !has_allowed || may[e] ? key_of(own[e]) : NO_KEY;
    for (int r = lid; r < choices; r += 64)
        chosen[r] = -1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = lid; e < experts; e += 64) {
        if (keys[e] == NO_KEY)
            continue;
        int rank = rank_of(keys, experts, e);
        if (rank < R)
            chosen[rank] = e;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int r = lid; r < choices; r += 64) {
        float peak = chosen[0] < 0 ? -INFINITY : own[chosen[0]], share = 0.0f, total = 0.0f;
        int has_nan = 0;
        for (int i = 0; i < R && chosen[i] >= 0; i++) {
            float logit = own[chosen[i]], e = peak == -INFINITY ? 0.0f : exp(logit - peak);
            has_nan |= isnan(logit) != 0;
            total += e;
            share = i == r ? e : share;
        }
        long at = (long)row * R + r;
        float weight = total == 0.0f ? 0.0f : share / total;
        ids[at] = chosen[r];
        weights[at] = chosen[r] < 0 ? 0.0f : has_nan ? NAN : weight;
    }
}
