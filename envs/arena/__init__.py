"""Episodes as they are driven: one by one, many at once, Gymnasium's and PettingZoo's faces; environments of others."""
