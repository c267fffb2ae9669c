// The place of a slot's row in the pools, in rows; needs `page_table`, its start and slot_pages.
#define PAGE_ROWS 64u

uint pool_row(uint slot, uint place)
{
    uint page = page_table[page_table_at + slot * slot_pages + place / PAGE_ROWS];
    return page * PAGE_ROWS + place % PAGE_ROWS;
}
