"""How answers are judged: pure functions that environments' rewards are made of."""
