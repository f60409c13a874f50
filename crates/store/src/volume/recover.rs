//! Opening a directory that somebody left in the middle of something.
//!
//! Every step of a metadata change is durable before the next, so only these leftovers can exist:
//!
//! | found | was | done |
//! |---|---|---|
//! | `*.meta.tmp`, `*.checksum.tmp` | a metadata file that was not yet in place | removed |
//! | a head that `volume.meta` does not name | a snapshot or revert before its commit, or after it | removed |
//! | a snapshot image that is the same file as the head | a snapshot before its commit | removed |
//! | metadata of a removed snapshot without its image, one child | a fold whose image has the child's name already | child's parent corrected, metadata removed |
//! | metadata without image, no child | a deletion, or the end of a fold | removed |
//! | head shorter than the volume | nothing of ours (Longhorn reads zeroes there) | lengthened |

use crate::buffer::BLOCK;
use crate::files::Files;
use crate::meta::{
    CHECKSUM_SUFFIX, DiskMeta, META_BYTES_MAX, META_SUFFIX, MetaError, TEMPORARY_SUFFIX, VOLUME_META, VolumeMeta,
    checksum_name, is_head, meta_name, render, snapshot_name,
};
use crate::tree::Tree;

use super::lifecycle::OpenError;

/// Metadata of a directory that is in order.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) meta: VolumeMeta,
    pub(super) tree: Tree,
    /// What was put in order.
    pub(super) repairs: Vec<String>,
}

/// Whose directory it is: in others' nothing is removed that might be wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Ours,
    Others,
}

pub(super) fn recover<F: Files>(files: &mut F, whose: Whose) -> Result<Found, OpenError> {
    let mut repairs = Vec::new();
    let names = files.list().map_err(OpenError::io("list of files"))?;
    let unfinished = [META_SUFFIX, CHECKSUM_SUFFIX].map(|suffix| format!("{suffix}{TEMPORARY_SUFFIX}"));
    for name in names.iter().filter(|name| unfinished.iter().any(|suffix| name.ends_with(suffix))) {
        remove(files, name)?;
    }
    let images: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_image(name)).collect();
    let meta = volume_meta(files, &images, &mut repairs)?;
    let mut tree = Tree { head: meta.head.clone(), ..Tree::default() };
    for name in &names {
        // Temporary files of a restore (volume-delta-…) have metadata too, but no place in the chain.
        if let Some(image) = name.strip_suffix(META_SUFFIX)
            && is_image(image)
        {
            tree.disks.insert(image.to_owned(), disk_meta(files, name, image)?);
        }
    }
    stray_heads(files, whose, &images, &mut tree, &mut repairs)?;
    uncommitted_snapshots(files, &images, &mut tree, &mut repairs)?;
    missing_images(files, &mut tree, &mut repairs)?;
    files.sync_dir().map_err(OpenError::io("sync of the directory"))?;
    tree.check()?;
    check_sizes(files, &meta, &tree, &mut repairs)?;
    Ok(Found { meta, tree, repairs })
}

fn is_image(name: &str) -> bool {
    is_head(name) || snapshot_name(name).is_some()
}

fn remove<F: Files>(files: &mut F, name: &str) -> Result<(), OpenError> {
    files.remove(name).map_err(OpenError::io(name))
}

fn remove_image<F: Files>(files: &mut F, tree: &mut Tree, image: &str) -> Result<(), OpenError> {
    for name in [image.to_owned(), checksum_name(image), meta_name(image)] {
        remove(files, &name)?;
    }
    tree.disks.remove(image);
    Ok(())
}

/// Reads `volume.meta`. Where it is missing or empty (Longhorn does not sync it), the only head that has
/// metadata stands in, as Longhorn itself does it.
fn volume_meta<F: Files>(files: &mut F, images: &[&str], repairs: &mut Vec<String>) -> Result<VolumeMeta, OpenError> {
    let contents = files.read_file(VOLUME_META, META_BYTES_MAX).map_err(OpenError::io(VOLUME_META))?;
    let meta = match contents.as_deref().map(|contents| VolumeMeta::parse(VOLUME_META, contents)) {
        Some(Ok(meta)) => meta,
        Some(Err(error)) if !matches!(error, MetaError::Empty { .. }) => return Err(error.into()),
        None | Some(Err(_)) => {
            let mut heads = images.iter().filter(|image| is_head(image));
            let (Some(head), None) = (heads.next(), heads.next()) else { return Err(OpenError::NotAReplica) };
            let stat = files.stat(head).map_err(OpenError::io(*head))?.ok_or(OpenError::NotAReplica)?;
            repairs.push(format!("{VOLUME_META} was missing or empty; made from {head} ({} bytes)", stat.size));
            VolumeMeta {
                size: stat.size as i64,
                head: (*head).to_owned(),
                sector_size: crate::meta::SECTOR_SIZE,
                ..VolumeMeta::default()
            }
        }
    };
    let field = |field, value: String, fix| Err(OpenError::Field { file: VOLUME_META.to_owned(), field, value, fix });
    if !meta.backing_file_path.is_empty() {
        return field("BackingFilePath", meta.backing_file_path, "volumes with a backing image are not supported");
    }
    if meta.size <= 0 || !(meta.size as u64).is_multiple_of(BLOCK) {
        return field("Size", meta.size.to_string(), "must be a positive multiple of 4096");
    }
    if !is_head(&meta.head) {
        return field("Head", meta.head, "must name the volume-head-NNN.img that writes go to");
    }
    Ok(meta)
}

fn disk_meta<F: Files>(files: &mut F, name: &str, image: &str) -> Result<DiskMeta, OpenError> {
    let contents = files.read_file(name, META_BYTES_MAX).map_err(OpenError::io(name))?.unwrap_or_default();
    let mut disk = DiskMeta::parse(name, &contents)?;
    // The name inside may be that of the head which the snapshot once was.
    image.clone_into(&mut disk.name);
    Ok(disk)
}

fn stray_heads<F: Files>(
    files: &mut F,
    whose: Whose,
    images: &[&str],
    tree: &mut Tree,
    repairs: &mut Vec<String>,
) -> Result<(), OpenError> {
    let mut strays = tree.stray_heads();
    strays.extend(images.iter().filter(|image| is_head(image) && **image != tree.head).map(|i| (*i).to_owned()));
    strays.sort_unstable();
    strays.dedup();
    for image in strays {
        let stat = files.stat(&image).map_err(OpenError::io(&image))?;
        let wanted = stat.is_some_and(|stat| stat.links == 1 && stat.allocated > 0);
        if whose == Whose::Others && wanted {
            repairs.push(format!("{image} holds data but {VOLUME_META} names {} as head; left alone", tree.head));
            tree.disks.remove(&image);
            continue;
        }
        repairs.push(format!("{image} is left from an interrupted snapshot or revert; removed"));
        remove_image(files, tree, &image)?;
    }
    Ok(())
}

fn uncommitted_snapshots<F: Files>(
    files: &mut F,
    images: &[&str],
    tree: &mut Tree,
    repairs: &mut Vec<String>,
) -> Result<(), OpenError> {
    let head = tree.head.clone();
    let Some(stat) = files.stat(&head).map_err(OpenError::io(&head))? else {
        return Err(OpenError::MissingImage { image: head });
    };
    for image in images.iter().filter(|image| **image != head) {
        let same = files.stat(image).map_err(OpenError::io(*image))?.is_some_and(|other| other.inode == stat.inode);
        if same {
            repairs.push(format!("{image} is left from an interrupted snapshot; removed"));
            remove_image(files, tree, image)?;
        }
    }
    Ok(())
}

fn missing_images<F: Files>(files: &mut F, tree: &mut Tree, repairs: &mut Vec<String>) -> Result<(), OpenError> {
    let snapshots: Vec<String> = tree.disks.keys().filter(|image| is_image(image)).cloned().collect();
    for image in snapshots {
        if files.stat(&image).map_err(OpenError::io(&image))?.is_some() {
            continue;
        }
        if tree.children(&image).next().is_none() {
            repairs.push(format!("{} is left from an interrupted deletion; removed", meta_name(&image)));
        } else if let (Some(child), true) = (tree.only_child(&image), tree.disks[&image].removed) {
            let child = child.to_owned();
            repairs.push(format!("the fold of {image} into {child} was interrupted; finished"));
            let parent = tree.disks[&image].parent.clone();
            let disk = tree.disks.get_mut(&child).expect("a child must be in the tree");
            disk.parent = parent;
            replace_meta(files, &meta_name(&child), &render(disk)).map_err(OpenError::io(&child))?;
        } else {
            return Err(OpenError::MissingImage { image });
        }
        remove_image(files, tree, &image)?;
    }
    Ok(())
}

fn check_sizes<F: Files>(
    files: &mut F,
    meta: &VolumeMeta,
    tree: &Tree,
    repairs: &mut Vec<String>,
) -> Result<(), OpenError> {
    for image in tree.live()? {
        let stat = files.stat(&image).map_err(OpenError::io(&image))?;
        let stat = stat.ok_or_else(|| OpenError::MissingImage { image: image.clone() })?;
        if stat.size % BLOCK != 0 {
            return Err(OpenError::Length { image, size: stat.size });
        }
        if image == tree.head && stat.size < meta.size as u64 {
            repairs.push(format!("{image} had {} bytes of {}; lengthened", stat.size, meta.size));
            files.resize(&image, meta.size as u64).map_err(OpenError::io(&image))?;
        }
    }
    Ok(())
}

/// Writes a metadata file so that the old or the new one is there, whatever happens. The caller syncs the
/// directory before anything that depends on it.
pub(super) fn replace_meta<F: Files>(files: &mut F, name: &str, contents: &[u8]) -> std::io::Result<()> {
    let temporary = format!("{name}{TEMPORARY_SUFFIX}");
    files.write_file(&temporary, contents)?;
    files.rename(&temporary, name)?;
    files.sync_dir()
}

/// Whether a name belongs to the replica at all.
pub(super) fn is_ours(name: &str) -> bool {
    let stem = name.strip_suffix(TEMPORARY_SUFFIX).unwrap_or(name);
    let stem = stem.strip_suffix(META_SUFFIX).or_else(|| stem.strip_suffix(CHECKSUM_SUFFIX)).unwrap_or(stem);
    stem == "volume" || stem == crate::state::STATE_FILE || is_image(stem)
}
