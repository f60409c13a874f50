//! What an engine does, told as short stories.
