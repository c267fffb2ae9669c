// Sums and largest numbers of the items of a group, as trees: one order for a number of items.
shared float items_room[ITEMS];

float sum_of_items(float x)
{
    items_room[LID] = x;
    barrier();
    for (uint half_way = ITEMS / 2u; half_way > 0u; half_way /= 2u) {
        if (LID < half_way)
            items_room[LID] += items_room[LID + half_way];
        barrier();
    }
    float total = items_room[0];
    barrier();
    return total;
}

float max_of_items(float x)
{
    items_room[LID] = x;
    barrier();
    for (uint half_way = ITEMS / 2u; half_way > 0u; half_way /= 2u) {
        if (LID < half_way)
            items_room[LID] = max(items_room[LID], items_room[LID + half_way]);
        barrier();
    }
    float top = items_room[0];
    barrier();
    return top;
}
