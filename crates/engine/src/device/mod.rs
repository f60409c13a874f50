//! A volume as a kernel block device that outlives its engine.

pub mod fuse;
