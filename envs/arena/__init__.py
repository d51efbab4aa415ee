"""Episodes as others drive them: one by one, many at once, by Gymnasium's and PettingZoo's faces; others' environments."""
