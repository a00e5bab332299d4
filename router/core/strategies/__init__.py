"""The built-in strategies: each is one module with one class and its `Params`, and none gets favours."""
