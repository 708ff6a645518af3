"""Tables, of which a column says whose row it is: read, made features of, split."""
