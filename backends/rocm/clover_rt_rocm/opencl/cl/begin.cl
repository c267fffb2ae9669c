// begin: the deltas of the pass. Pages in order, since a place may occur twice; counts are sums of
// integers, in which the order does not show.
kernel GROUP_OF(64) void begin(global const int *table, int at_pages, int at_counts,
                               global int *page_table, global int *counts, int slot_pages,
                               int vocab)
{
    int lid = get_local_id(0);
    global const int *page = table + at_pages, *count = table + at_counts;
    if (lid == 0)
        for (int i = 0; i < table[TABLE_PAGE_DELTAS]; i++, page += 4)
            page_table[(long)page[0] * slot_pages + page[1]] = page[2];
    for (int i = lid; i < table[TABLE_COUNT_DELTAS]; i += 64)
        atomic_add(counts + (long)count[4 * i] * vocab + count[4 * i + 1], count[4 * i + 2]);
}
