//! A FUSE file system of one file, whose content is the volume; a loop device turns it into a block device.
//!
//! The mount's root *is* the file, so that there is nothing to look up and nothing to list: what is left of the
//! protocol is a dozen operations. [`machine::Fuse`] understands them without touching a descriptor.

pub mod abi;
pub mod machine;
pub mod mount;

#[cfg(test)]
mod tests;
