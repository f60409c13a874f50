//! What a replica does, told as short conversations with an engine and a store.
