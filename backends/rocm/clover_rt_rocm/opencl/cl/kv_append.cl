// kv_append: one work-item for a number of k and of v; preview rows are left out.
kernel GROUP_OF(64) void kv_append(global const int *table, int at_segments, int at_owner,
                                   global const float *k, global const float *v,
                                   global const int *page_table, global Kv *k_pool,
                                   global Kv *v_pool, int width, int slot_pages)
{
    int column = get_global_id(0), row = get_global_id(1);
    if (column >= width || row >= table[TABLE_ROWS])
        return;
    Segment s = segment_at(table, at_segments, table[at_owner + row]);
    if (s.kind == PREVIEW)
        return;
    long to = pool_row(page_table, slot_pages, s.slot, s.position + row - s.row0) * width + column;
    long from = (long)row * width + column;
    k_pool[to] = TO_KV(k[from]);
    v_pool[to] = TO_KV(v[from]);
}
