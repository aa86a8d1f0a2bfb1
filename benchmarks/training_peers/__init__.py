"""Other systems that train one model on several machines, and Epochal, on the same model, data and machine."""
