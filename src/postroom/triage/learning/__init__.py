"""Local triage that learns: what the model and the owner decide becomes labels of a small linear model, which decides
by itself where its held-out figures have earned it the right. `service.py` is what triage calls."""
