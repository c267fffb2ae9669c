// The step table; needs `params` and `params_at`.
#define COMMIT 0u
#define PREVIEW 1u
#define VERIFY 2u

uint table(uint word)
{
    return params[params_at + word];
}

uint table_rows()
{
    return table(1u);
}

uint table_segments()
{
    return table(2u);
}

uint table_wanted()
{
    return table(3u);
}

uint table_page_deltas()
{
    return table(4u);
}

uint table_count_deltas()
{
    return table(5u);
}

uint table_advances()
{
    return table(6u);
}
