"""The built-in strategies. Each is one module with one class and its `Params`; none is favoured by the engine."""
