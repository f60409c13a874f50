//! How users reach a volume: the NBD listener and what stands between it and the engine.
