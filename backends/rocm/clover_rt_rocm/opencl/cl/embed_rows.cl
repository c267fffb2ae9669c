// embed_rows: one work-item for eight numbers of a row. Launched once a part of the table: ids
// first .. first + count - 1; the first launch also writes zeros for ids that are in no part.
kernel GROUP_OF(64) void embed_rows(global const int *table, int at_tokens, WEIGHT(embed),
                                    global float *h, int D, int vocab, int first, int count)
{
    int row = get_global_id(1), k = get_global_id(0) * 8;
    if (row >= table[TABLE_ROWS] || k >= D)
        return;
    int token = table[at_tokens + row];
    int known = token >= 0 && token < vocab;
    if (known ? token < first || token - first >= count : first > 0)
        return;
    float8 found = (float8)(0.0f);
    if (known)
        found = load8_embed(GIVEN(embed), token - first, k, D);
    float eight[8];
    vstore8(found, 0, eight);
    global float *to = h + (long)row * D + k;
    for (int i = 0; i < 8 && k + i < D; i++)
        to[i] = eight[i];
}
