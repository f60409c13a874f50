//! What is particular to each built-in kind: defaults, what may change, how it prints.
