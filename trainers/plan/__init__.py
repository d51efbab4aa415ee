"""The forecast of a run's step: how long it takes on how many cards, before a card is rented."""
